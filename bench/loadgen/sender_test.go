package main

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"sort"
	"strings"
	"testing"
)

func optionsOf(t *testing.T, arguments ...string) Options {
	o, err := ParseOptions(append([]string{"-body-bytes", "100", "-queues", "4"}, arguments...))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// fieldsOf returns the extension fields of a frame with a JSON header, and its body.
func fieldsOf(t *testing.T, frame Frame) (map[string]string, []byte) {
	_, header, size, err := nextFrame(frame.bytes)
	if err != nil || size != len(frame.bytes) {
		t.Fatalf("not a whole frame: %d of %d, %v", size, len(frame.bytes), err)
	}
	var decoded struct{ ExtFields map[string]string }
	if err := json.Unmarshal(header, &decoded); err != nil {
		t.Fatal(err)
	}
	return decoded.ExtFields, frame.bytes[8+len(header):]
}

// propertiesOf returns the pairs of a message's properties.
func propertiesOf(text string) map[string]string {
	pairs := map[string]string{}
	for _, pair := range strings.Split(strings.TrimSuffix(text, "\x02"), "\x02") {
		name, value, _ := strings.Cut(pair, "\x01")
		pairs[name] = value
	}
	return pairs
}

// Code 10 has the names that Go's client writes, in its order: the fields last, sorted.
func TestGoClientsRequest(t *testing.T) {
	frame := BuildFrame(optionsOf(t, "-code", "10", "-order", "go"), 2, 0)
	frame.Stamp(1234567, 1790000000123, 10)
	_, header, _, _ := nextFrame(frame.bytes)
	if !strings.HasPrefix(string(header), `{"code":10,"language":"GO","version":513,"opaque":1234567,"flag":0,`) {
		t.Fatalf("header %s", header)
	}
	fields, _ := fieldsOf(t, frame)
	if fields["queueId"] != "2" || fields["topic"] != "GantryBench" || fields["bornTimestamp"] != "1790000000123" {
		t.Fatalf("fields %v", fields)
	}
	last := ""
	for _, part := range strings.Split(string(header[strings.Index(string(header), `"extFields":{`)+13:]), `","`) {
		name, _, _ := strings.Cut(strings.TrimPrefix(part, `"`), `"`)
		if name < last {
			t.Fatalf("%s comes after %s", name, last)
		}
		last = name
	}
}

// Keys come before the unique id, as in Java's map, and change with every sending.
func TestKeysChangeWithEverySending(t *testing.T) {
	for _, header := range []string{headerJSON, headerRocketMQ} {
		frame := BuildFrame(optionsOf(t, "-keys", "2", "-header", header), 0, 0)
		if len(frame.keysAt) != 2 || frame.keysAt[0] > frame.uniqueAt || frame.numbers() != 2 {
			t.Fatalf("%s: keys at %v, unique id at %d", header, frame.keysAt, frame.uniqueAt)
		}
		frame.Stamp(opaqueStart, 1790000000000, 41)
		first := string(frame.bytes)
		if !strings.Contains(first, "key0000000041 key0000000042") {
			t.Fatalf("%s: no keys in %q", header, first)
		}
	}
}

// A batch holds whole messages, each with its own unique id and keys, and counts as all of them.
func TestBatchHoldsWholeMessages(t *testing.T) {
	frame := BuildFrame(optionsOf(t, "-code", "320", "-batch-messages", "3", "-keys", "1"), 1, 0)
	frame.Stamp(opaqueStart, 1790000000000, 7)
	fields, body := fieldsOf(t, frame)
	if fields["m"] != "true" || propertiesOf(fields["i"])["KEYS"] != "" {
		t.Fatalf("fields %v", fields)
	}
	seen := map[string]bool{propertiesOf(fields["i"])["UNIQ_KEY"]: true}
	for len(body) > 0 {
		total := int(binary.BigEndian.Uint32(body))
		bodyEnd := 20 + int(binary.BigEndian.Uint32(body[16:]))
		properties := propertiesOf(string(body[bodyEnd+2 : total]))
		if bodyEnd != 120 || int(binary.BigEndian.Uint16(body[bodyEnd:])) != total-bodyEnd-2 || properties["KEYS"] == "" {
			t.Fatalf("a message of %d bytes, its body up to %d, properties %v", total, bodyEnd, properties)
		}
		seen[properties["UNIQ_KEY"]] = true
		body = body[total:]
	}
	if len(seen) != 4 || frame.numbers() != 4 {
		t.Fatalf("%d unique ids of 4: %v", len(seen), seen)
	}

	address := serve(t, answerWith(0, 0))
	report, err := run(optionsFor(t, address, "-code", "320", "-batch-messages", "3", "-outstanding", "2"))
	if err != nil {
		t.Fatal(err)
	}
	if report.Messages == 0 || report.Messages%3 != 0 || report.Load.BatchMessages != 3 || report.Load.Code != 320 {
		t.Fatalf("%+v", report)
	}
}

// Every change of a frame is signed: the keys, and the unique ids inside of a batch.
func TestSignatureCoversKeysAndBatches(t *testing.T) {
	for _, shape := range [][]string{
		{"-keys", "2"},
		{"-code", "10", "-order", "go", "-keys", "1"},
		{"-code", "10"},
		{"-code", "320", "-batch-messages", "2", "-keys", "1"},
	} {
		frame := BuildFrame(optionsOf(t, append(shape, "-access-key", "bench-key", "-secret-key", "bench-secret")...), 1, 0)
		for counter := uint64(1); counter < 9; counter += frame.numbers() {
			frame.Stamp(opaqueStart+int(counter), 1790000000000+int64(counter), counter)
			fields, body := fieldsOf(t, frame)
			names := []string{}
			for name := range fields {
				if name != "Signature" {
					names = append(names, name)
				}
			}
			sort.Strings(names)
			mac := hmac.New(sha1.New, []byte("bench-secret"))
			for _, name := range names {
				mac.Write([]byte(fields[name]))
			}
			mac.Write(body)
			if wanted := base64.StdEncoding.EncodeToString(mac.Sum(nil)); fields["Signature"] != wanted {
				t.Fatalf("%v: signature %s, and %s is right", shape, fields["Signature"], wanted)
			}
		}
	}
}

// A request that no client sends is refused before anything is built.
func TestShapesAreBounded(t *testing.T) {
	for _, arguments := range [][]string{
		{"-code", "11"}, {"-order", "random"}, {"-keys", "9"}, {"-batch-messages", "2"},
		{"-code", "320", "-batch-messages", "0"},
		{"-code", "320", "-batch-messages", "1024", "-body-bytes", "100000"},
	} {
		if _, err := ParseOptions(arguments); err == nil {
			t.Errorf("%v was accepted", arguments)
		}
	}
}
