package main

import (
	"bytes"
	"testing"
)

func TestRequestsHaveTheFieldsOfTheProtocol(t *testing.T) {
	message, _ := findField(sendRequest("orders", "id-1", 7, []byte("body")), 1)
	topic, _ := findField(message, 1)
	name, _ := findField(topic, 2)
	system, _ := findField(message, 3)
	id, _ := findField(system, 3)
	_, kind := findField(system, 6)
	body, _ := findField(message, 4)
	if string(name) != "orders" || string(id) != "id-1" || kind != messageTypeNormal || string(body) != "body" {
		t.Fatalf("topic %q, id %q, kind %d, body %q", name, id, kind, body)
	}
}

func TestStatusIsReadAndMalformedRepliesHaveNone(t *testing.T) {
	reply := appendBytes(nil, 1, appendNumber(nil, 1, statusOK))
	if code := statusCode(reply); code != statusOK {
		t.Fatalf("code %d", code)
	}
	for _, broken := range [][]byte{nil, {0x0a}, {0x0a, 9, 1}, {0xff}, {0x0d, 1}} {
		if code := statusCode(broken); code != 0 {
			t.Fatalf("%v has code %d", broken, code)
		}
	}
}

func TestConstantHeadersAreSentOnce(t *testing.T) {
	table := HeaderTable{places: map[string]int{}}
	first := table.constant(nil, "a", "1")
	table.constant(nil, "b", "2")
	if !bytes.Equal(first, []byte("\x40\x01a\x011")) {
		t.Fatalf("the first is %q", first)
	}
	if again := table.constant(nil, "a", "1"); !bytes.Equal(again, []byte{0x80 | 63}) {
		t.Fatalf("the older of two has index 63, not %v", again)
	}
	if again := table.constant(nil, "b", "2"); !bytes.Equal(again, []byte{0x80 | 62}) {
		t.Fatalf("the newest has index 62, not %v", again)
	}
}

type recorded struct {
	data  map[uint32][]byte
	ended map[uint32]bool
	rooms int
}

func (r *recorded) OnData(stream uint32, data []byte) {
	r.data[stream] = append(r.data[stream], data...)
}
func (r *recorded) OnEnd(stream uint32, isFailed bool) { r.ended[stream] = isFailed }
func (r *recorded) OnRoom()                            { r.rooms++ }

func TestFramesOfTheServerAreHandled(t *testing.T) {
	server, client := Peer{}, Peer{window: 10}
	server.frame(frameSettings, 0, 0, nil)
	server.frame(framePing, 0, 0, []byte("12345678"))
	server.frame(frameHeaders, flagEndHeaders, 1, []byte{0x88})
	server.frame(frameData, 0, 1, []byte("reply"))
	server.frame(frameHeaders, flagEndHeaders|flagEndStream, 1, nil)
	server.frame(frameReset, 0, 3, make([]byte, 4))
	server.frame(frameWindowUpdate, 0, 0, []byte{0, 0, 0, 90})
	cut := append(server.out, 0, 0, 5)
	events := &recorded{data: map[uint32][]byte{}, ended: map[uint32]bool{}}
	rest, err := client.Handle(cut, events)
	if err != nil || len(rest) != 3 {
		t.Fatalf("rest %v, error %v", rest, err)
	}
	if string(events.data[1]) != "reply" || events.ended[1] || !events.ended[3] || events.rooms != 1 {
		t.Fatalf("got %+v", events)
	}
	if !client.HasRoom(95) || client.HasRoom(96) {
		t.Fatalf("the window is %d", client.window)
	}
	answers := Peer{}
	answers.frame(frameSettings, flagAck, 0, nil)
	answers.frame(framePing, flagAck, 0, []byte("12345678"))
	if !bytes.Equal(client.out, answers.out) {
		t.Fatalf("answered %v", client.out)
	}
	server.out = nil
	server.frame(frameGoaway, 0, 0, make([]byte, 8))
	if _, err := client.Handle(server.out, events); err == nil {
		t.Fatal("the end of the connection is an error")
	}
}

func TestOptionsOfProxyLoadsAreBounded(t *testing.T) {
	for _, arguments := range [][]string{
		{"-mode=other"}, {"-outstanding=0"}, {"-connections=2", "-outstanding=1"}, {"-batch=33"}, {"-duration=1h"},
		{"-body-bytes=0"}, {"-pids=x"},
	} {
		if _, err := ParseProxyOptions(arguments); err == nil {
			t.Errorf("%v is accepted", arguments)
		}
	}
	options, err := ParseProxyOptions([]string{"-mode=receive", "-outstanding=64", "-connections=4", "-pids=1,2"})
	if err != nil || len(options.PIDs) != 2 {
		t.Fatalf("%+v, %v", options, err)
	}
}
