package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// A client of HTTP/2 for this load alone: closed loops of small calls. It decodes no headers of the server, because the
// outcome of a call is in its reply; a reply without data is a failure.

const (
	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameSettings     = 4
	framePing         = 6
	frameGoaway       = 7
	frameWindowUpdate = 8

	flagEndStream  = 0x1
	flagAck        = 0x1
	flagEndHeaders = 0x4

	settingInitialWindow = 4
	ownWindow            = 1 << 24
	ownConnectionWindow  = 1 << 30
	firstWindow          = 65535
	frameHeaderBytes     = 9
	readBytesMax         = 1 << 20
	readBytesIdle        = 4096
	prefixBytes          = 5
	preface              = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
)

// HeaderTable encodes headers: constant ones are added to the table once per connection and then referred to, as every
// client does; those that change with each call are texts.
type HeaderTable struct {
	places map[string]int
}

func appendHeaderText(to []byte, text string) []byte {
	return append(append(to, byte(len(text))), text...)
}

// constant appends a header that is the same in many calls.
func (t *HeaderTable) constant(to []byte, name, value string) []byte {
	key := name + "\x00" + value
	place, isKnown := t.places[key]
	if isKnown {
		index := 61 + len(t.places) - place // the newest has index 62
		if index < 127 {
			return append(to, byte(0x80|index))
		}
		return binary.AppendUvarint(append(to, 0xff), uint64(index-127))
	}
	t.places[key] = len(t.places)
	return appendHeaderText(appendHeaderText(append(to, 0x40), name), value)
}

// changing appends a header that is different in each call.
func changing(to []byte, name, value string) []byte {
	return appendHeaderText(appendHeaderText(append(to, 0x00), name), value)
}

// Peer is the transport of one client. Its owner reads and writes it from one goroutine.
type Peer struct {
	socket     net.Conn
	headers    HeaderTable
	authority  string
	clientID   string
	out        []byte
	nextStream uint32
	window     int
	consumed   int
	calls      uint64
	readBytes  int
}

// NewPeer connects, and announces large windows, so that the server never waits for this client.
func NewPeer(address, clientID string) (*Peer, error) {
	socket, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	p := &Peer{socket: socket, authority: address, clientID: clientID, nextStream: 1, window: firstWindow, readBytes: readBytesIdle}
	p.headers.places = map[string]int{}
	p.out = append(p.out, preface...)
	setting := binary.BigEndian.AppendUint16(nil, settingInitialWindow)
	p.frame(frameSettings, 0, 0, binary.BigEndian.AppendUint32(setting, ownWindow))
	p.frame(frameWindowUpdate, 0, 0, binary.BigEndian.AppendUint32(nil, ownConnectionWindow-firstWindow))
	return p, nil
}

func (p *Peer) frame(kind, flags byte, stream uint32, payload []byte) {
	size := len(payload)
	p.out = append(p.out, byte(size>>16), byte(size>>8), byte(size), kind, flags)
	p.out = binary.BigEndian.AppendUint32(p.out, stream)
	p.out = append(p.out, payload...)
}

// Begin begins a call and returns its stream; the request may follow later on it.
func (p *Peer) Begin(path string) uint32 {
	stream := p.nextStream
	p.nextStream += 2
	p.calls++
	block := append(make([]byte, 0, 512), 0x83, 0x86) // POST, http
	block = p.headers.constant(block, ":path", path)
	block = p.headers.constant(block, ":authority", p.authority)
	block = p.headers.constant(block, "content-type", "application/grpc")
	block = p.headers.constant(block, "te", "trailers")
	block = p.headers.constant(block, "user-agent", "grpc-go/1.70.0")
	block = p.headers.constant(block, "x-mq-client-id", p.clientID)
	block = p.headers.constant(block, "x-mq-language", "GO")
	block = p.headers.constant(block, "x-mq-protocol", "v2")
	block = p.headers.constant(block, "x-mq-client-version", "5.1.3")
	block = p.headers.constant(block, "x-mq-date-time", "20261127T120000Z")
	if path != pathTelemetry {
		block = changing(block, "grpc-timeout", strconv.FormatUint(29_000_000+p.calls%1_000_000, 10)+"u")
	}
	block = changing(block, "x-mq-request-id", fmt.Sprintf("7c1f6a52-0d0b-4b3e-9f43-%012x", p.calls))
	p.frame(frameHeaders, flagEndHeaders, stream, block)
	return stream
}

// Message sends a message on a stream. The windows of servers are larger than one request.
func (p *Peer) Message(stream uint32, message []byte, isLast bool) {
	flags := byte(0)
	if isLast {
		flags = flagEndStream
	}
	size := len(message) + prefixBytes
	p.window -= size
	p.out = append(p.out, byte(size>>16), byte(size>>8), byte(size), frameData, flags)
	p.out = binary.BigEndian.AppendUint32(p.out, stream)
	p.out = append(p.out, 0)
	p.out = binary.BigEndian.AppendUint32(p.out, uint32(len(message)))
	p.out = append(p.out, message...)
}

// HasRoom is whether the connection's window allows so many bytes.
func (p *Peer) HasRoom(size int) bool { return p.window >= size+prefixBytes }

// Flush writes all that was sent.
func (p *Peer) Flush() error {
	if len(p.out) == 0 {
		return nil
	}
	_, err := p.socket.Write(p.out)
	p.out = p.out[:0]
	return err
}

// Events gets what happens on streams.
type Events interface {
	OnData(stream uint32, data []byte)
	OnEnd(stream uint32, isFailed bool)
	OnRoom()
}

// Handle processes whole frames of a buffer, and returns the rest.
func (p *Peer) Handle(buffer []byte, events Events) ([]byte, error) {
	for len(buffer) >= frameHeaderBytes {
		size := int(buffer[0])<<16 | int(buffer[1])<<8 | int(buffer[2])
		if len(buffer) < frameHeaderBytes+size {
			break
		}
		kind, flags := buffer[3], buffer[4]
		stream := binary.BigEndian.Uint32(buffer[5:]) & 0x7fffffff
		payload := buffer[frameHeaderBytes : frameHeaderBytes+size]
		buffer = buffer[frameHeaderBytes+size:]
		if err := p.handleFrame(kind, flags, stream, payload, events); err != nil {
			return nil, err
		}
	}
	return buffer, nil
}

func (p *Peer) handleFrame(kind, flags byte, stream uint32, payload []byte, events Events) error {
	switch kind {
	case frameData:
		p.consumed += len(payload)
		if p.consumed > ownConnectionWindow/2 {
			p.frame(frameWindowUpdate, 0, 0, binary.BigEndian.AppendUint32(nil, uint32(p.consumed)))
			p.consumed = 0
		}
		events.OnData(stream, payload)
		if flags&flagEndStream != 0 {
			events.OnEnd(stream, false)
		}
	case frameHeaders:
		if flags&flagEndStream != 0 {
			events.OnEnd(stream, false)
		}
	case frameReset:
		events.OnEnd(stream, true)
	case frameSettings:
		if flags&flagAck == 0 {
			p.frame(frameSettings, flagAck, 0, nil)
		}
	case framePing:
		if flags&flagAck == 0 {
			p.frame(framePing, flagAck, 0, payload)
		}
	case frameGoaway:
		return fmt.Errorf("the server ended the connection: %q", payload)
	case frameWindowUpdate:
		if stream == 0 && len(payload) == 4 {
			p.window += int(binary.BigEndian.Uint32(payload))
			events.OnRoom()
		}
	}
	return nil
}

// Run reads until `isDone`, and handles what arrives.
func (p *Peer) Run(events Events, isDone func() bool) error {
	buffer, used := make([]byte, p.readBytes), 0
	for !isDone() {
		if err := p.Flush(); err != nil {
			return err
		}
		count, err := p.socket.Read(buffer[used:])
		if errors.Is(err, io.EOF) {
			return errors.New("the server closed the connection")
		}
		if err != nil {
			return err
		}
		rest, err := p.Handle(buffer[:used+count], events)
		if err != nil {
			return err
		}
		used = copy(buffer, rest)
		if used == len(buffer) {
			return errors.New("the server sent a frame that is too large")
		}
	}
	return p.Flush()
}
