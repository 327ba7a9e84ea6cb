package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func sampleOptions() Options {
	o, err := ParseOptions([]string{"-body-bytes", "128", "-tags", "TagA", "-queues", "4"})
	if err != nil {
		panic(err)
	}
	return o
}

// The JSON header is what a Java client writes: one object, every extension field a string, keys in order.
func TestJSONHeaderIsAJavaClients(t *testing.T) {
	frame := BuildFrame(sampleOptions(), 3, 0)
	frame.Stamp(1234567, 1790000000123, 10)
	_, header, size, err := nextFrame(frame.bytes)
	if err != nil || size != len(frame.bytes) {
		t.Fatalf("not a whole frame: %d of %d, %v", size, len(frame.bytes), err)
	}

	var decoded struct {
		Code      int
		ExtFields map[string]string
		Language  string
		Opaque    int
		Version   int
	}
	if err := json.Unmarshal(header, &decoded); err != nil {
		t.Fatal(err)
	}
	if decoded.Code != 310 || decoded.Opaque != 1234567 || decoded.Language != "JAVA" || decoded.Version != versionJava {
		t.Fatalf("decoded %+v", decoded)
	}
	if decoded.ExtFields["e"] != "3" || decoded.ExtFields["g"] != "1790000000123" {
		t.Fatalf("decoded %+v", decoded.ExtFields)
	}
	properties := strings.Split(decoded.ExtFields["i"], "\x02")
	unique := strings.TrimPrefix(properties[0], "UNIQ_KEY\x01")
	if len(unique) != 32 || properties[1] != "WAIT\x01true" || properties[2] != "TAGS\x01TagA" {
		t.Fatalf("properties %q", properties)
	}
	if !strings.HasPrefix(string(header), `{"code":310,"extFields":{"a":"`) || strings.Contains(string(header), " ") {
		t.Fatalf("not the form Java writes: %s", header)
	}
}

// Every sending of a slot has another unique id, with the same fixed part.
func TestStampMakesEverySendingUnique(t *testing.T) {
	for _, kind := range []string{headerJSON, headerRocketMQ} {
		o := sampleOptions()
		o.Header = kind
		frame := BuildFrame(o, 0, 0)
		seen := map[string]bool{}
		for counter := uint64(1); counter <= 70_000; counter++ {
			frame.Stamp(opaqueStart+int(counter), 1790000000000+int64(counter/65_000), counter)
			unique := string(frame.bytes[frame.uniqueAt : frame.uniqueAt+uniqueDigits])
			if seen[unique] {
				t.Fatalf("%s: unique id %s twice, at %d", kind, unique, counter)
			}
			seen[unique] = true
			if strings.HasPrefix(unique, uniquePlaceholder[:uniqueFixed]) == false {
				t.Fatalf("%s: the fixed part of %s changed", kind, unique)
			}
		}
	}
}

// The binary header is read back by the same parser that reads a server's answers.
func TestRocketMQHeaderHasItsFieldsInPlace(t *testing.T) {
	o := sampleOptions()
	o.Header = headerRocketMQ
	frame := BuildFrame(o, 0, 0)
	frame.Stamp(7654321, 1790000000000, 1)
	kind, header, _, err := nextFrame(frame.bytes)
	if err != nil {
		t.Fatal(err)
	}
	reply, ok := ParseReply(kind, header)
	if kind != kindRocketMQ || !ok || reply.Code != 310 || reply.Opaque != 7654321 {
		t.Fatalf("kind %d, parsed %+v", kind, reply)
	}
}

// An opaque number keeps its width, never repeats among those outstanding, and leads back to its slot.
func TestOpaqueLeadsBackToItsSlot(t *testing.T) {
	const slots = 64
	for slot := 0; slot < slots; slot++ {
		opaque := 0
		for i := 0; i < 200_000; i++ {
			opaque = nextOpaque(opaque, slot, slots)
			if opaque < opaqueStart || opaque >= opaqueEnd || (opaque-opaqueStart)%slots != slot {
				t.Fatalf("slot %d got opaque %d", slot, opaque)
			}
		}
	}
}

// Wrong lengths are an error, and an incomplete frame is not.
func TestNextFrameTrustsNoLength(t *testing.T) {
	whole := BuildFrame(sampleOptions(), 0, 0).bytes
	for end := 0; end < len(whole); end++ {
		if _, _, size, err := nextFrame(whole[:end]); size != 0 || err != nil {
			t.Fatalf("%d of %d bytes gave size %d, error %v", end, len(whole), size, err)
		}
	}
	for _, lie := range [][]byte{
		{0x7F, 0, 0, 0, 0, 0, 0, 0},
		{0, 0, 0, 8, 0, 0, 0, 5},
		{0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0},
	} {
		if _, _, _, err := nextFrame(lie); err == nil {
			t.Fatalf("a wrong length was accepted: %v", lie)
		}
	}
}

// With several topics the messages go to each in turn, and the frame keeps its length.
func TestStampTakesTopicsInTurn(t *testing.T) {
	for _, kind := range []string{headerJSON, headerRocketMQ} {
		o := sampleOptions()
		o.Header, o.Topics = kind, 3
		frame := BuildFrame(o, 0, 0)
		size := len(frame.bytes)
		for counter, want := range []string{"000000", "000001", "000002", "000000"} {
			frame.Stamp(opaqueStart+counter, 1790000000000, uint64(counter))
			if !strings.Contains(string(frame.bytes), o.Topic+want) || len(frame.bytes) != size {
				t.Fatalf("%s: sending %d has no topic %s: %q", kind, counter, want, frame.bytes)
			}
		}
	}
}

// Many connections with small windows need little memory; a large window has the room that it had.
func TestInputHasRoomForTheAnswersOfAWindow(t *testing.T) {
	for _, one := range []struct{ outstanding, answer, want int }{
		{1, 5000, 10_000}, {64, 5000, 640_000}, {1024, 5000, inputBytesMax}, {1, 4 << 20, 8 << 20},
	} {
		if got := inputBytes(one.outstanding, one.answer); got != one.want {
			t.Fatalf("%+v: got %d", one, got)
		}
	}
}
