package main

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Window is the time in which calls count. It is the same for all clients.
type Window struct {
	begin time.Time
	end   time.Time
	done  func() bool
	count func() bool
}

// Call is one slot of a client: it always has one call open, and begins the next one when that ends.
type Call struct {
	path     string
	began    time.Time
	reply    []byte
	receipts [][2][]byte
}

// ProxyClient is one client with a connection of its own. It runs in one goroutine.
type ProxyClient struct {
	options ProxyOptions
	window  *Window
	peer    *Peer
	slots   int
	body    []byte
	receive []byte
	open    map[uint32]*Call
	waiting []*Call
	number  int
	sent    uint64

	isReady   bool
	telemetry uint32
	failure   error

	latency  *Histogram
	messages uint64
	empty    uint64
	receives uint64
	refused  map[uint64]uint64
	refusal  string
}

// noLatency is the histogram of clients that call nothing.
var noLatency Histogram

// NewProxyClient connects a client with so many slots, and opens its Telemetry stream.
func NewProxyClient(o ProxyOptions, window *Window, number, slots int) (*ProxyClient, error) {
	peer, err := NewPeer(o.Address, fmt.Sprintf("loadgen-%s-%d", o.Mode, number))
	if err != nil {
		return nil, err
	}
	c := &ProxyClient{
		options: o, window: window, peer: peer, slots: slots, number: number,
		body: make([]byte, o.BodyBytes), receive: receiveRequest(o),
		open: map[uint32]*Call{}, refused: map[uint64]uint64{}, latency: &noLatency,
	}
	if o.Mode != modeIdle {
		c.latency = &Histogram{}
		peer.readBytes = readBytesMax
	}
	for i := range c.body {
		c.body[i] = byte('a' + i%26)
	}
	c.telemetry = peer.Begin(pathTelemetry)
	c.open[c.telemetry] = &Call{path: pathTelemetry}
	peer.Message(c.telemetry, settingsCommand(o), false)
	return c, nil
}

// Run works until the window is over and no call is open.
func (c *ProxyClient) Run() error {
	defer c.peer.socket.Close()
	err := c.peer.Run(c, func() bool { return c.failure != nil || c.window.done() && len(c.open) <= 1 })
	if c.failure != nil {
		return c.failure
	}
	return err
}

// OnData collects a reply. The first one of the Telemetry stream begins the load.
func (c *ProxyClient) OnData(stream uint32, data []byte) {
	call := c.open[stream]
	if call == nil {
		return
	}
	call.reply = append(call.reply, data...)
	if call.path != pathTelemetry || c.isReady {
		return
	}
	message, rest := nextMessage(call.reply)
	if message == nil {
		return
	}
	call.reply = rest
	if code := statusCode(message); code != statusOK && code != 0 {
		c.failure = fmt.Errorf("the proxy refused the settings with code %d", code)
		return
	}
	c.isReady = true
	if c.options.Mode != modeIdle {
		for i := 0; i < c.slots; i++ {
			c.next(&Call{})
		}
	}
}

// OnEnd counts a call, and begins the next one of its slot.
func (c *ProxyClient) OnEnd(stream uint32, isFailed bool) {
	call := c.open[stream]
	if call == nil {
		return
	}
	delete(c.open, stream)
	if call.path == pathTelemetry {
		if !c.window.done() {
			c.failure = fmt.Errorf("the proxy ended the Telemetry stream")
		}
		return
	}
	switch {
	case isFailed || len(call.reply) < prefixBytes:
		c.refuse(0, "a call without a reply")
	case call.path == pathReceive:
		c.onReceived(call)
	default:
		c.onReply(call)
	}
	if !c.window.done() {
		c.next(call)
	}
}

// OnRoom begins the calls for which the window of the connection was too small.
func (c *ProxyClient) OnRoom() {
	waiting := c.waiting
	c.waiting = nil
	for _, call := range waiting {
		c.next(call)
	}
}

func (c *ProxyClient) onReply(call *Call) {
	message, _ := nextMessage(call.reply)
	if code := statusCode(message); code != statusOK {
		status, _ := findField(message, 1)
		text, _ := findField(status, 2)
		c.refuse(code, string(text))
		return
	}
	if c.window.count() {
		c.messages++
		c.latency.Record(int64(time.Since(call.began)))
	}
}

func (c *ProxyClient) onReceived(call *Call) {
	for rest := call.reply; ; {
		message, after := nextMessage(rest)
		if message == nil {
			break
		}
		rest = after
		if content, _ := findField(message, 2); content != nil {
			system, _ := findField(content, 3)
			id, _ := findField(system, 3)
			receipt, _ := findField(system, 12)
			call.receipts = append(call.receipts, [2][]byte{id, receipt})
		} else if code := statusCode(message); code != statusOK && code != 0 && code != statusMessageNotFound {
			status, _ := findField(message, 1)
			text, _ := findField(status, 2)
			c.refuse(code, "a receive: "+string(text))
		}
	}
	call.reply = nil // the receipts refer to it
	if len(call.receipts) == 0 {
		c.empty++
	} else if c.window.count() {
		c.receives++
	}
}

// next begins the next call of a slot: a send; an acknowledgement of what it has received; or a receive.
func (c *ProxyClient) next(call *Call) {
	var request []byte
	switch {
	case c.options.Mode == modeSend:
		c.sent++
		call.path = pathSend
		id := fmt.Sprintf("01%012X%04X%016X", c.number, c.options.Outstanding, c.sent)
		request = sendRequest(c.options.Topic, id, call.began.Unix(), c.body)
	case len(call.receipts) > 0:
		last := call.receipts[len(call.receipts)-1]
		call.path = pathAck
		request = ackRequest(c.options, last[0], last[1])
	default:
		call.path, request = pathReceive, c.receive
	}
	if !c.peer.HasRoom(len(request)) {
		c.waiting = append(c.waiting, call)
		return
	}
	if call.path == pathAck {
		call.receipts = call.receipts[:len(call.receipts)-1]
	}
	if call.reply != nil {
		call.reply = call.reply[:0]
	}
	call.began = time.Now()
	stream := c.peer.Begin(call.path)
	c.open[stream] = call
	c.peer.Message(stream, request, true)
}

func (c *ProxyClient) refuse(code uint64, text string) {
	c.refused[code]++
	if c.refusal == "" {
		c.refusal = fmt.Sprintf("code %d: %s", code, text)
	}
}

// nextMessage is the first whole message of a reply, and what follows it; nil if there is none.
func nextMessage(reply []byte) (message, rest []byte) {
	if len(reply) < prefixBytes {
		return nil, nil
	}
	end := prefixBytes + int(binary.BigEndian.Uint32(reply[1:prefixBytes]))
	if len(reply) < end {
		return nil, nil
	}
	return reply[prefixBytes:end:end], reply[end:]
}
