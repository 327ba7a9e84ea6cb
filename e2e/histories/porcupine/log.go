package main

import (
	"encoding/binary"
	"hash/fnv"
)

// A Node is the last message of a log that is never changed: a longer log is a new node on top of it.
//
// The hash covers all messages of the log, so two logs are compared without reading them. `jump` skips many messages,
// so the message at an offset is found in a logarithmic number of steps.
type Node struct {
	before *Node
	jump   *Node
	length int64 // of the log, including this message, whose offset is length - 1
	hash   uint64

	message Identity
	epoch   int64 // of the term in which it was appended

	// Of a message that was acknowledged: when its send began, and when a broker answered. Otherwise -1.
	sentAt     int64
	answeredAt int64
	broker     string
}

// An Identity is what must be equal in every observation of a message. Without a digest it is an open send, of which
// nothing else is known.
type Identity struct {
	Digest         string
	PhysicalOffset int64
}

// NewLog returns the empty log.
func NewLog() *Node {
	node := &Node{}
	node.before, node.jump = node, node
	return node
}

// Push returns the log with one more message.
func (log *Node) Push(node Node) *Node {
	node.before, node.length = log, log.length+1
	node.jump = log
	if log.length-log.jump.length == log.jump.length-log.jump.jump.length && log.length > 0 {
		node.jump = log.jump.jump
	}
	node.hash = hash(log.hash, node.message.Digest, node.message.PhysicalOffset, node.epoch)
	return &node
}

// Cut returns the log with its first messages only.
func (log *Node) Cut(length int64) *Node {
	node := log
	for node.length > length {
		if node.jump.length >= length {
			node = node.jump
		} else {
			node = node.before
		}
	}
	return node
}

// Has returns whether the log has these messages, from this offset on.
func (log *Node) Has(begin int64, messages []Identity) bool {
	end := begin + int64(len(messages))
	if log.length < end {
		return false
	}
	node := log.Cut(end)
	for place := len(messages) - 1; place >= 0; place-- {
		if node.message != messages[place] {
			return false
		}
		node = node.before
	}
	return true
}

// replace returns the log with this message in the place of an open send.
func (log *Node) replace(offset int64, message Identity) (*Node, bool) {
	place := log.Cut(offset + 1)
	if place.length != offset+1 || place.message.Digest != "" {
		return log, false
	}
	var later []*Node
	for node := log; node != place; node = node.before {
		later = append(later, node)
	}
	replaced := *place
	replaced.message = message
	result := place.before.Push(replaced)
	for index := len(later) - 1; index >= 0; index-- {
		result = result.Push(*later[index])
	}
	return result, true
}

// hash returns a hash of a text and numbers, and of an earlier hash.
func hash(before uint64, text string, numbers ...int64) uint64 {
	sum := fnv.New64a()
	bytes := binary.LittleEndian.AppendUint64(make([]byte, 0, 64), before)
	for _, number := range numbers {
		bytes = binary.LittleEndian.AppendUint64(bytes, uint64(number))
	}
	sum.Write(append(bytes, text...))
	return sum.Sum64()
}
