package main

import (
	"fmt"
	"reflect"
	"slices"
)

// An OffsetState is a state of one consumer in one queue: where it reads, and what is stored as its group's offset.
type OffsetState struct {
	offset     int64
	connection Connection // of the last reply with this offset; none if it is not known what is stored
	reader     Connection // of the last pull
	end        int64      // the highest end of the queue that the reader was shown
	highest    int64      // the highest offset that was ever committed
	position   int64      // the highest offset at which the consumer has continued; -1 before its first read
	pending    []int64    // offsets whose commit was not confirmed, sorted
}

// A Connection to a process of a broker.
type Connection struct {
	Broker    string
	Connected int64
}

// An OffsetOperation is one operation of a group's offset.
type OffsetOperation interface {
	// Step returns the state after the operation. It fails if the operation cannot have this result now.
	Step(state OffsetState) (OffsetState, bool)
	String() string
}

// Continued is the reply to a pull, as a move of the consumer.
type Continued struct {
	Begin      int64
	Next       int64
	End        int64 // of the queue, in the reply
	Connection Connection
}

// Step moves the consumer. It may go back, but never skip messages: after its first read it begins where it has been.
func (read Continued) Step(state OffsetState) (OffsetState, bool) {
	isLegal := state.position < 0 || read.Begin <= state.position
	state.position = max(state.position, read.Next)
	if state.reader != read.Connection {
		state.reader, state.end = read.Connection, 0
	}
	state.end = max(state.end, read.End)
	return state, isLegal
}

func (read Continued) String() string {
	return fmt.Sprintf("read at %d, continue at %d", read.Begin, read.Next)
}

// CommitBegun is the request of a commit. It takes effect at any later time, or never.
type CommitBegun struct{ Offset int64 }

// Step adds the offset to those that may be stored. A consumer commits nothing that it has not read.
func (commit CommitBegun) Step(state OffsetState) (OffsetState, bool) {
	if commit.Offset > max(state.position, 0) {
		return state, false
	}
	state.pending = with(state.pending, commit.Offset)
	state.highest = max(state.highest, commit.Offset)
	return state, true
}

func (commit CommitBegun) String() string { return fmt.Sprintf("commit %d", commit.Offset) }

// CommitDone is a commit that was confirmed.
type CommitDone struct {
	Offset     int64
	Connection Connection
}

// Step stores the offset. A broker may lower one that is beyond the end of its queue, so what is stored is known only
// if the broker has shown the queue up to this offset.
func (commit CommitDone) Step(state OffsetState) (OffsetState, bool) {
	if !slices.Contains(state.pending, commit.Offset) {
		return state, false
	}
	state.offset, state.connection = commit.Offset, commit.Connection
	if state.reader != commit.Connection || state.end < commit.Offset {
		state.offset, state.connection = -1, Connection{}
	}
	state.pending = without(state.pending, commit.Offset)
	return state, true
}

func (commit CommitDone) String() string { return fmt.Sprintf("commit %d confirmed", commit.Offset) }

// OffsetReturned is a reply with the stored offset.
type OffsetReturned struct {
	Offset     int64
	Connection Connection
	IsCurrent  bool // the term of the broker was the newest when the reply arrived
}

// Step compares the offset. The same process of a master returns what it has confirmed. Another broker may have an
// older offset, because offsets are replicated later; but never one that is higher than every commit.
func (reply OffsetReturned) Step(state OffsetState) (OffsetState, bool) {
	if reply.IsCurrent && state.connection == reply.Connection {
		if reply.Offset != state.offset && !slices.Contains(state.pending, reply.Offset) {
			return state, false
		}
	} else if reply.Offset > state.highest {
		return state, false
	}
	state.offset, state.connection = reply.Offset, reply.Connection
	if reply.Offset < 0 { // the broker may store an offset by itself, when it refuses a pull beyond the end
		state.connection = Connection{}
	}
	return state, true
}

func (reply OffsetReturned) String() string {
	return fmt.Sprintf("query offset -> %d from %s", reply.Offset, reply.Connection.Broker)
}

// OffsetAtEnd is the offset at the last master, with the end of the queue.
type OffsetAtEnd struct {
	Offset int64
	End    int64
}

// Step checks that the offset is not beyond the end: the group would skip the next messages.
func (last OffsetAtEnd) Step(state OffsetState) (OffsetState, bool) {
	return state, last.Offset <= last.End
}

func (last OffsetAtEnd) String() string {
	return fmt.Sprintf("offset %d in the end, in a queue that ends at %d", last.Offset, last.End)
}

// Equal compares all fields.
func (state OffsetState) Equal(other OffsetState) bool {
	pending, others := state.pending, other.pending
	state.pending, other.pending = nil, nil
	return reflect.DeepEqual(state, other) && slices.Equal(pending, others)
}

func (state OffsetState) String() string {
	return fmt.Sprintf("offset %d, not confirmed %v, consumer at %d", state.offset, state.pending, state.position)
}

// with returns a sorted copy of the offsets with one more.
func with(offsets []int64, offset int64) []int64 {
	place, isFound := slices.BinarySearch(offsets, offset)
	if isFound {
		return offsets
	}
	return slices.Insert(slices.Clone(offsets), place, offset)
}

// without returns a copy of the offsets without one of them.
func without(offsets []int64, offset int64) []int64 {
	place, isFound := slices.BinarySearch(offsets, offset)
	if !isFound {
		return offsets
	}
	return slices.Delete(slices.Clone(offsets), place, place+1)
}
