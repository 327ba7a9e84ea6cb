package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"syscall"
)

// slot is one place in the window: a frame and whether it waits for its answer.
type slot struct {
	frame   Frame
	group   int
	opaque  int
	sentAt  int64
	waiting bool
}

// group is the frames of one write; it is sent again when all of them are answered.
type group struct {
	bytes   []byte
	slots   []int
	waiting int
}

// connection owns a non-blocking socket, its window, and what is not yet written or read.
//
//	input: [0 ...... filled ...... len)
type connection struct {
	fd        int
	firstSlot int // its slots have the engine-wide numbers [firstSlot, firstSlot + len(slots))
	slots     []slot
	groups    []group
	ready     []int
	unwritten [][]byte
	input     []byte
	filled    int
	// isWatchedForRoom is whether epoll reports that the socket takes bytes again.
	isWatchedForRoom bool
}

const inputBytesMax = 1 << 20

func dial(address string) (int, error) {
	resolved, err := net.ResolveTCPAddr("tcp4", address)
	if err != nil {
		return 0, fmt.Errorf("address %s: %w", address, err)
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	target := &syscall.SockaddrInet4{Port: resolved.Port}
	copy(target.Addr[:], resolved.IP.To4())
	err = syscall.Connect(fd, target)
	if err == nil {
		err = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	}
	if err == nil {
		err = syscall.SetNonblock(fd, true)
	}
	if err != nil {
		syscall.Close(fd)
		return 0, fmt.Errorf("connect to %s: %w", address, err)
	}
	return fd, nil
}

// inputBytes is room for the answers of a whole window, at most a mebibyte of them and at least two: ten thousand
// connections with a window of one must not need ten thousand mebibytes.
func inputBytes(outstanding, answerBytes int) int {
	return max(min(2*outstanding*answerBytes, inputBytesMax), 2*answerBytes)
}

// newConnection lays the frames of each group side by side, so that one write sends them.
func newConnection(o Options, fd, firstSlot int) *connection {
	bodyBytes := o.BatchMessages * (o.BodyBytes + batchEntryBytesExtra)
	c := &connection{fd: fd, firstSlot: firstSlot, input: make([]byte, inputBytes(o.Outstanding, bodyBytes+frameBytesExtra))}
	c.slots = make([]slot, o.Outstanding)
	c.groups = make([]group, o.Outstanding/o.FramesPerWrite)
	for g := range c.groups {
		var lengths []int
		for i := 0; i < o.FramesPerWrite; i++ {
			number := g*o.FramesPerWrite + i
			frame := BuildFrame(o, (firstSlot+number)%o.Queues, firstSlot+number)
			c.slots[number] = slot{frame: frame, group: g}
			c.groups[g].slots = append(c.groups[g].slots, number)
			c.groups[g].bytes = append(c.groups[g].bytes, frame.bytes...)
			lengths = append(lengths, len(frame.bytes))
		}
		at := 0
		for i, number := range c.groups[g].slots {
			c.slots[number].frame.bytes = c.groups[g].bytes[at : at+lengths[i]]
			at += lengths[i]
		}
		c.ready = append(c.ready, g)
	}
	return c
}

// nextFrame gives the kind, header and size of the first whole frame in data; size 0 means that the frame is
// incomplete.
func nextFrame(data []byte) (kind byte, header []byte, size int, err error) {
	if len(data) < 8 {
		return 0, nil, 0, nil
	}
	total := int(binary.BigEndian.Uint32(data))
	word := binary.BigEndian.Uint32(data[4:])
	headerLength := int(word & 0xFFFFFF)
	if total < 4+headerLength || total > bodyBytesMax+frameBytesExtra {
		return 0, nil, 0, fmt.Errorf("the server sent a frame of %d bytes with a header of %d", total, headerLength)
	}
	if len(data) < 4+total {
		return 0, nil, 0, nil
	}
	return byte(word >> 24), data[8 : 8+headerLength], 4 + total, nil
}
