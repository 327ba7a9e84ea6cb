package main

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Engine is one thread with one epoll set. It keeps every window full, checks every answer and counts. It does no
// more per message than stamping a frame and searching a reply, so that the server and not the load generator bounds
// the rate; the load generator's own CPU use is in the report and shows whether that was so.
type Engine struct {
	options     Options
	epoll       int
	connections []*connection
	clock       clock
	counter     uint64
	counts      Counts
	latency     Histogram
	outstanding int
	isSending   bool
	lastAnswer  int64
}

// Counts are the events of one measurement.
type Counts struct {
	Messages     uint64
	Writes       uint64
	FramesSent   uint64
	Reads        uint64
	Replies      uint64
	RefusedBy    map[int]uint64
	WrongOpaque  uint64
	WrongReply   uint64
	FirstRefusal string
}

const (
	patience     = 5 * time.Second
	epollTick    = 100 // ms; bounds how late the end of the measurement is noticed when nothing arrives
	eventsAtOnce = 256
)

// clock gives monotonic nanoseconds and the wall time that belongs to them from a single reading.
type clock struct {
	start   time.Time
	startMS int64
}

func newClock() clock {
	now := time.Now()
	return clock{start: now, startMS: now.UnixMilli()}
}

func (c clock) now() int64                     { return int64(time.Since(c.start)) }
func (c clock) wallMS(nanoseconds int64) int64 { return c.startMS + nanoseconds/1_000_000 }

// NewEngine connects; nothing is sent yet.
func NewEngine(o Options) (*Engine, error) {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	e := &Engine{options: o, epoll: epoll, clock: newClock()}
	for i := 0; i < o.Connections; i++ {
		fd, err := dial(o.Address)
		if err != nil {
			e.Close()
			return nil, err
		}
		e.connections = append(e.connections, newConnection(o, fd, i*o.Outstanding))
		event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(i)}
		if err := syscall.EpollCtl(epoll, syscall.EPOLL_CTL_ADD, fd, &event); err != nil {
			e.Close()
			return nil, fmt.Errorf("epoll: %w", err)
		}
	}
	return e, nil
}

// Close closes every socket.
func (e *Engine) Close() {
	for _, c := range e.connections {
		syscall.Close(c.fd)
	}
	syscall.Close(e.epoll)
}

// RunFor resets all counts and sends for a time; at the end the windows stay full. If no answer came in that time, it
// continues until the first answer. It fails once no answer came for `patience`.
func (e *Engine) RunFor(length time.Duration) (time.Duration, error) {
	e.counts = Counts{RefusedBy: map[int]uint64{}}
	e.latency.Reset()
	e.isSending = true
	start := e.clock.now()
	e.lastAnswer = start
	for _, c := range e.connections {
		if err := e.send(c); err != nil {
			return 0, err
		}
	}
	for e.clock.now()-start < int64(length) || e.counts.Replies == 0 {
		if err := e.turn(); err != nil {
			return 0, err
		}
	}
	return time.Duration(e.clock.now() - start), nil
}

// Drain waits for the answers that are still out, without sending. They are not part of any measurement.
func (e *Engine) Drain() error {
	e.isSending = false
	for e.outstanding > 0 {
		if err := e.turn(); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) turn() error {
	var events [eventsAtOnce]syscall.EpollEvent
	count, err := syscall.EpollWait(e.epoll, events[:], epollTick)
	if err != nil && !errors.Is(err, syscall.EINTR) {
		return fmt.Errorf("epoll: %w", err)
	}
	for _, event := range events[:max(count, 0)] {
		c := e.connections[event.Fd]
		if event.Events&syscall.EPOLLOUT != 0 {
			if err := e.flush(c); err != nil {
				return err
			}
		}
		if event.Events&(syscall.EPOLLIN|syscall.EPOLLHUP|syscall.EPOLLERR) != 0 {
			if err := e.receive(c); err != nil {
				return err
			}
		}
	}
	if silence := e.clock.now() - e.lastAnswer; silence > int64(patience) {
		return fmt.Errorf("no answer for %s with %d messages outstanding", patience, e.outstanding)
	}
	return nil
}

// receive takes one read's worth of answers and refills the window.
func (e *Engine) receive(c *connection) error {
	count, err := syscall.Read(c.fd, c.input[c.filled:])
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if count == 0 {
		return fmt.Errorf("the server closed a connection after %d messages", e.counts.Messages)
	}
	e.counts.Reads++
	c.filled += count
	now := e.clock.now()
	e.lastAnswer = now
	at := 0
	for {
		kind, header, size, err := nextFrame(c.input[at:c.filled])
		if err != nil {
			return err
		}
		if size == 0 {
			break
		}
		e.recordAnswer(c, kind, header, size, now)
		at += size
	}
	c.filled = copy(c.input, c.input[at:c.filled])
	if e.isSending {
		return e.send(c)
	}
	return nil
}

// recordAnswer finds the request of an answer, checks the answer, counts it, and makes its slot free again.
func (e *Engine) recordAnswer(c *connection, kind byte, header []byte, size int, now int64) {
	e.counts.Replies++
	reply, isReply := ParseReply(kind, header)
	if !isReply {
		e.counts.WrongReply++
		return
	}
	slots := len(e.connections) * e.options.Outstanding
	number := (reply.Opaque-opaqueStart)%slots - c.firstSlot
	if number < 0 || number >= len(c.slots) || !c.slots[number].waiting || c.slots[number].opaque != reply.Opaque {
		e.counts.WrongOpaque++
		return
	}
	s := &c.slots[number]
	s.waiting = false
	e.outstanding--
	switch {
	case e.options.Echo && (reply.Code != e.options.Code || size != len(s.frame.bytes)):
		e.counts.WrongReply++
	case !e.options.Echo && reply.Code != 0:
		if len(e.counts.RefusedBy) == 0 {
			e.counts.FirstRefusal = string(header[:min(len(header), 400)])
		}
		e.counts.RefusedBy[reply.Code]++
	default:
		e.counts.Messages += uint64(e.options.BatchMessages)
		e.latency.Record(now - s.sentAt)
	}
	g := &c.groups[s.group]
	g.waiting--
	if g.waiting == 0 {
		c.ready = append(c.ready, s.group)
	}
}

// send writes every group whose answers are all in.
func (e *Engine) send(c *connection) error {
	slots := len(e.connections) * e.options.Outstanding
	for _, number := range c.ready {
		g := &c.groups[number]
		now := e.clock.now()
		bornMS := e.clock.wallMS(now)
		for _, slotNumber := range g.slots {
			s := &c.slots[slotNumber]
			s.opaque = nextOpaque(s.opaque, c.firstSlot+slotNumber, slots)
			s.sentAt = now
			s.waiting = true
			s.frame.Stamp(s.opaque, bornMS, e.counter)
			e.counter += s.frame.numbers()
		}
		g.waiting = len(g.slots)
		e.outstanding += len(g.slots)
		e.counts.FramesSent += uint64(len(g.slots))
		c.unwritten = append(c.unwritten, g.bytes)
		if err := e.flush(c); err != nil {
			return err
		}
	}
	c.ready = c.ready[:0]
	return nil
}

// nextOpaque gives every sending of a slot its own number of a fixed width; its remainder modulo the number of slots
// identifies the slot.
func nextOpaque(previous, slot, slots int) int {
	next := previous + slots
	if previous == 0 || next >= opaqueEnd {
		return opaqueStart + slot
	}
	return next
}

// flush writes in order until the socket takes no more; what one call takes counts as one write.
func (e *Engine) flush(c *connection) error {
	for len(c.unwritten) > 0 {
		count, err := syscall.Write(c.fd, c.unwritten[0])
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if errors.Is(err, syscall.EAGAIN) {
			return e.watch(c, true)
		}
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		e.counts.Writes++
		if count < len(c.unwritten[0]) {
			c.unwritten[0] = c.unwritten[0][count:]
			continue
		}
		copy(c.unwritten, c.unwritten[1:])
		c.unwritten = c.unwritten[:len(c.unwritten)-1]
	}
	return e.watch(c, false)
}

// watch asks epoll for room to write only while something waits for it: a socket nearly always has room.
func (e *Engine) watch(c *connection, forRoom bool) error {
	if c.isWatchedForRoom == forRoom {
		return nil
	}
	c.isWatchedForRoom = forRoom
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(c.firstSlot / e.options.Outstanding)}
	if forRoom {
		event.Events |= syscall.EPOLLOUT
	}
	if err := syscall.EpollCtl(e.epoll, syscall.EPOLL_CTL_MOD, c.fd, &event); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}
