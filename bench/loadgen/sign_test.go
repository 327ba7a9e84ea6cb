package main

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"sort"
	"testing"
)

// A signed frame carries, after every stamp, the signature that its own fields and body make.
func TestSignatureFollowsEveryStamp(t *testing.T) {
	o, err := ParseOptions([]string{"-body-bytes", "128", "-access-key", "bench-key", "-secret-key", "bench-secret"})
	if err != nil {
		t.Fatal(err)
	}
	frame := BuildFrame(o, 1, 0)
	for counter := uint64(1); counter < 4; counter++ {
		frame.Stamp(opaqueStart+int(counter), 1790000000000+int64(counter), counter)
		_, header, size, err := nextFrame(frame.bytes)
		if err != nil || size != len(frame.bytes) {
			t.Fatalf("not a whole frame: %d of %d, %v", size, len(frame.bytes), err)
		}
		var decoded struct{ ExtFields map[string]string }
		if err := json.Unmarshal(header, &decoded); err != nil {
			t.Fatal(err)
		}
		names := []string{}
		for name := range decoded.ExtFields {
			if name != "Signature" {
				names = append(names, name)
			}
		}
		sort.Strings(names)
		mac := hmac.New(sha1.New, []byte("bench-secret"))
		for _, name := range names {
			mac.Write([]byte(decoded.ExtFields[name]))
		}
		mac.Write(frame.bytes[len(frame.bytes)-o.BodyBytes:])
		if wanted := base64.StdEncoding.EncodeToString(mac.Sum(nil)); decoded.ExtFields["Signature"] != wanted {
			t.Fatalf("signature %s, and %s is right", decoded.ExtFields["Signature"], wanted)
		}
	}
}

// Only JSON headers are signed here, and an account has both halves.
func TestHalfAnAccountIsRefused(t *testing.T) {
	for _, arguments := range [][]string{
		{"-access-key", "bench-key"},
		{"-secret-key", "bench-secret"},
		{"-access-key", "bench-key", "-secret-key", "bench-secret", "-header", headerRocketMQ},
	} {
		if _, err := ParseOptions(arguments); err == nil {
			t.Fatalf("%v was taken", arguments)
		}
	}
}
