package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// serve answers every frame with the result of the function for its header; nil means no answer.
func serve(t *testing.T, answer func(header []byte) []byte) string {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			peer, err := listener.Accept()
			if err != nil {
				return
			}
			go talk(peer, answer)
		}
	}()
	return listener.Addr().String()
}

func talk(peer net.Conn, answer func(header []byte) []byte) {
	defer peer.Close()
	var pending []byte
	chunk := make([]byte, 64<<10)
	for {
		count, err := peer.Read(chunk)
		if err != nil {
			return
		}
		pending = append(pending, chunk[:count]...)
		var replies []byte
		for {
			_, header, size, err := nextFrame(pending)
			if err != nil {
				return
			}
			if size == 0 {
				break
			}
			if reply := answer(header); reply != nil {
				replies = binary.BigEndian.AppendUint32(replies, uint32(4+len(reply)))
				replies = binary.BigEndian.AppendUint32(replies, uint32(len(reply)))
				replies = append(replies, reply...)
			}
			pending = pending[size:]
		}
		if _, err := peer.Write(replies); err != nil {
			return
		}
	}
}

func answerWith(code, opaqueShift int) func(header []byte) []byte {
	return func(header []byte) []byte {
		at := bytes.Index(header, opaqueKey)
		opaque, _ := numberAfter(header[at:], opaqueKey)
		return []byte(fmt.Sprintf(`{"code":%d,"flag":1,"opaque":%d,"remark":"why"}`, code, opaque+opaqueShift))
	}
}

func optionsFor(t *testing.T, address string, more ...string) Options {
	o, err := ParseOptions(append([]string{"-address", address, "-body-bytes", "100", "-warm-up", "0s", "-duration", "50ms"}, more...))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Every answer is matched in all three shapes of load, and each write carries the requested number of frames.
func TestEveryShapeOfLoadIsAnswered(t *testing.T) {
	for name, shape := range map[string][]string{
		"one connection, batches":      {"-outstanding", "64", "-frames-per-write", "64"},
		"one connection, single":       {"-outstanding", "64"},
		"many connections, one by one": {"-connections", "16", "-outstanding", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			report, err := run(optionsFor(t, serve(t, answerWith(0, 0)), shape...))
			if err != nil {
				t.Fatal(err)
			}
			if report.Messages == 0 || report.Errors != 0 || report.FramesPerWriteMean != float64(report.Load.FramesPerWrite) {
				t.Fatalf("%+v", report)
			}
			if report.LatencyUS.P50 <= 0 || report.LatencyUS.P50 > report.LatencyUS.P99 || report.LatencyUS.P99 > report.LatencyUS.Max {
				t.Fatalf("latency %+v", report.LatencyUS)
			}
		})
	}
}

// A measurement is never empty: when the time is up before the first answer, it continues until that one.
func TestASlowServerIsMeasuredOnce(t *testing.T) {
	slow := func(header []byte) []byte {
		time.Sleep(80 * time.Millisecond)
		return answerWith(0, 0)(header)
	}
	report, err := run(optionsFor(t, serve(t, slow), "-outstanding", "1", "-duration", "1ms"))
	if err != nil {
		t.Fatal(err)
	}
	if report.Messages != 1 || report.Seconds < 0.08 {
		t.Fatalf("%+v", report)
	}
}

// A refusal is counted by its code, with the first one's text, and is no message.
func TestRefusalsAreCountedByCode(t *testing.T) {
	report, err := run(optionsFor(t, serve(t, answerWith(14, 0)), "-outstanding", "4"))
	if err != nil {
		t.Fatal(err)
	}
	if report.Messages != 0 || report.RefusedByCode["14"] == 0 || report.Errors != report.RefusedByCode["14"] {
		t.Fatalf("%+v", report)
	}
	if !strings.Contains(report.FirstRefusal, `"remark":"why"`) {
		t.Fatalf("first refusal %q", report.FirstRefusal)
	}
}

// An answer that matches no request is an error, never a message.
func TestStrangeOpaqueIsNoMessage(t *testing.T) {
	o := optionsFor(t, serve(t, answerWith(0, 1)), "-outstanding", "1")
	engine, err := NewEngine(o)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	if _, err := engine.RunFor(50 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if engine.counts.WrongOpaque != 1 || engine.counts.Messages != 0 {
		t.Fatalf("%+v", engine.counts)
	}
}

// A server that closes the connection ends the run with that reason.
func TestHangUpIsTheReason(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if peer, err := listener.Accept(); err == nil {
			peer.Read(make([]byte, 1<<20))
			peer.Close()
		}
	}()
	_, err = run(optionsFor(t, listener.Addr().String(), "-outstanding", "1"))
	if err == nil || !strings.Contains(err.Error(), "closed a connection") {
		t.Fatalf("error %v", err)
	}
}
