package main

import (
	"fmt"
	"slices"
	"strings"
)

// A QueueState is a state of one queue: the logs of the current term and of earlier ones, the newest last.
//
// Every term begins with the log of the term before it, perhaps without its end. An older term is kept because slaves
// and deposed masters may still show its log.
type QueueState struct {
	terms []TermLog
	open  int64 // sends that began, whose outcome and offset are unknown, and that no log has yet
}

// A TermLog is the log in the newest state of a term.
type TermLog struct {
	epoch int64
	log   *Node

	// Where the promotion has cut the log is not known yet: at this length or after it. The first message of the term
	// shows it. -1 if it is known.
	floor int64

	shown int64 // the length up to which consumers have received messages
}

// fixed is the floor of a log whose start in the term is known.
const fixed = -1

func (state QueueState) top() TermLog { return state.terms[len(state.terms)-1] }

// with returns the state with another log in one of its terms.
func (state QueueState) with(place int, log *Node, floor int64) QueueState {
	state.terms = slices.Clone(state.terms)
	state.terms[place].log, state.terms[place].floor = log, floor
	return state
}

// Equal compares the contents of both states, by the hashes of their logs.
func (state QueueState) Equal(other QueueState) bool {
	return state.open == other.open && slices.EqualFunc(state.terms, other.terms, func(one, two TermLog) bool {
		return one.epoch == two.epoch && one.floor == two.floor && one.shown == two.shown &&
			one.log.length == two.log.length && one.log.hash == two.log.hash
	})
}

// Hash returns equal values for equal states.
func (state QueueState) Hash() uint64 {
	value := hash(uint64(state.open), "")
	for _, term := range state.terms {
		value = hash(value, "", term.epoch, term.floor, term.shown, term.log.length, int64(term.log.hash))
	}
	return value
}

func (state QueueState) String() string {
	var texts []string
	for _, term := range state.terms {
		texts = append(texts, fmt.Sprintf("epoch %d: %d messages", term.epoch, term.log.length))
	}
	return fmt.Sprintf("%s; %d open sends", strings.Join(texts, ", "), state.open)
}

// QueueFacts are what is known of a queue from the whole file.
type QueueFacts struct {
	isLossy    bool  // a promotion may cut the end of the log
	keepsShown bool  // but no message that a consumer has received
	begin      int64 // the physical offset at which the log begins in the end; what is before it has expired
	expired    int64 // messages before this offset are gone at the end, because they have expired

	// The epochs in which a message is known to have been appended at an offset. An open send cannot be there.
	known map[int64][]int64
}

// fill appends open sends until the log has this length. It fails if something else is known to be at these offsets.
func (facts *QueueFacts) fill(state QueueState, place int, length int64) (QueueState, bool) {
	term := state.terms[place]
	for offset := term.log.length; offset < length; offset++ {
		if state.open == 0 || (!facts.isLossy && offset >= facts.expired) {
			return state, false
		}
		if slices.Contains(facts.known[offset], term.epoch) {
			return state, false
		}
		term.log = term.log.Push(Node{sentAt: -1, epoch: term.epoch})
		state.open--
	}
	return state.with(place, term.log, term.floor), true
}

// extend makes the log of a term this long, for a message at this offset: it cuts the log if that is still open, or
// fills it.
func (facts *QueueFacts) extend(state QueueState, place int, length int64) (QueueState, bool) {
	term := state.terms[place]
	if term.floor != fixed && term.floor <= length && length < term.log.length {
		return state.with(place, term.log.Cut(length), fixed), true
	}
	next, isFilled := facts.fill(state, place, length)
	return next, isFilled && next.terms[place].log.length == length
}

// A QueueOperation is one operation of a queue. Its results are part of it, because they are known when it is judged.
type QueueOperation interface {
	// Step returns the state after the operation. It fails if the operation cannot have these results now.
	Step(facts *QueueFacts, state QueueState) (QueueState, bool)
	String() string
}

// Open is the begin of a send of which nothing else is known: it takes effect at any later time, or never.
type Open struct{ Key string }

// Step counts the send. Another operation uses it if it needs a message at an unknown offset.
func (Open) Step(_ *QueueFacts, state QueueState) (QueueState, bool) {
	state.open++
	return state, true
}

func (open Open) String() string { return fmt.Sprintf("send %s, not answered and not seen", open.Key) }

// Append is a send whose message was acknowledged, or observed at an offset.
type Append struct {
	Key      string
	Message  Identity
	Offset   int64
	After    int64   // the offset of the message that was sent before on the same connection, or -1
	Epochs   []int64 // in which it was acknowledged; nil if it was not
	SentAt   int64
	Answered int64  // when it was acknowledged
	Broker   string // that acknowledged it
	IsStray  bool   // it was shown, is not stored at the end, and was not acknowledged
	EpochMax int64  // of a broker that showed a stray message
}

// Step appends the message to the log of the current term. A stray message may be in the log of an older term.
func (send Append) Step(facts *QueueFacts, state QueueState) (QueueState, bool) {
	if send.Offset <= send.After {
		return state, false
	}
	for place := len(state.terms) - 1; place >= 0; place-- {
		term := state.terms[place]
		if send.Epochs != nil && !slices.Contains(send.Epochs, term.epoch) {
			return state, false
		}
		if !send.IsStray || term.epoch <= send.EpochMax {
			if log, isOpen := term.log.replace(send.Offset, send.Message); send.IsStray && isOpen {
				state.open++
				return state.with(place, log, term.floor), true
			}
			if next, isReady := facts.extend(state, place, send.Offset); isReady {
				return next.with(place, next.terms[place].log.Push(send.node(term.epoch)), fixed), true
			}
		}
		if !send.IsStray || !facts.isLossy {
			return state, false
		}
	}
	return state, false
}

func (send Append) node(epoch int64) Node {
	node := Node{message: send.Message, sentAt: -1, epoch: epoch}
	if send.Epochs != nil {
		node.sentAt, node.answeredAt, node.broker = send.SentAt, send.Answered, send.Broker
	}
	return node
}

func (send Append) String() string {
	if send.Epochs == nil {
		return fmt.Sprintf("send %s, not acknowledged, seen at %d", send.Key, send.Offset)
	}
	return fmt.Sprintf("send %s -> %d, acknowledged by %s in %v", send.Key, send.Offset, send.Broker, send.Epochs)
}

// Promote is the begin of a term. If its start in the log is known, so is the length of the queue then.
type Promote struct {
	Epoch  int64
	Before int64 // the epoch of the term before it
	Length int64 // of the queue at the start of the term; -1 if it is unknown
	Start  int64 // the physical offset of the start
}

// Step begins the term, in a lossy mode without the end of the log before it.
func (promotion Promote) Step(facts *QueueFacts, state QueueState) (QueueState, bool) {
	top := state.top()
	if top.epoch != promotion.Before {
		return state, false
	}
	length, floor := promotion.Length, int64(fixed)
	if length < 0 {
		length = top.log.length
		if facts.isLossy {
			floor = 0
		}
	}
	if top.log.length < length || (facts.keepsShown && length < top.shown) {
		return state, false
	}
	for node := top.log; node.length > length; node = node.before {
		isBefore := node.message.Digest != "" && node.message.PhysicalOffset < promotion.Start
		if !facts.isLossy || isBefore {
			return state, false
		}
	}
	state.terms = append(slices.Clone(state.terms), TermLog{promotion.Epoch, top.log.Cut(length), floor, 0})
	return state, true
}

func (promotion Promote) String() string {
	if promotion.Length < 0 {
		return fmt.Sprintf("promotion to epoch %d", promotion.Epoch)
	}
	return fmt.Sprintf("promotion to epoch %d at %d messages", promotion.Epoch, promotion.Length)
}

// Read is the reply to a pull, or the reading of a whole queue at the end.
type Read struct {
	Begin    int64 // the offset of the first message
	Messages []Identity
	Broker   string

	// For a master whose term was the newest when the reply arrived: its epoch and the end of the queue in its reply.
	// The reply must have what this process acknowledged before the request, of sends that began after `Since`.
	// Otherwise the epoch is -1.
	Epoch  int64
	End    int64
	Since  int64
	Called int64

	IsWhole bool // the end is exact
	IsSkip  bool // the reply has no messages, and the consumer continues at End: what is between has expired
}

// Step compares the messages with a log: a master must show the log of its term; others may show that of any term.
func (read Read) Step(facts *QueueFacts, state QueueState) (QueueState, bool) {
	if read.IsSkip {
		return state, read.End <= facts.expired
	}
	last := len(state.terms) - 1
	if read.IsWhole {
		filled, isFilled := facts.fill(state, last, read.End)
		if !isFilled || filled.top().log.length != read.End {
			return state, false
		}
		state = filled
		if !read.isBegin(facts, filled.top().log) {
			return state, false
		}
	}
	isCurrent := read.Epoch == state.top().epoch
	for place := last; place >= 0; place-- {
		term := state.terms[place]
		if term.log.Has(read.Begin, read.Messages) {
			state = read.show(facts, state, place)
			return state, !isCurrent || read.IsWhole || read.isComplete(term.log)
		}
		if isCurrent || read.IsWhole {
			return state, false
		}
	}
	return state, false
}

// show records how far consumers have received messages, where that limits what may be lost later.
func (read Read) show(facts *QueueFacts, state QueueState, place int) QueueState {
	term, end := state.terms[place], read.Begin+int64(len(read.Messages))
	if len(read.Messages) == 0 || (term.floor == fixed && !facts.keepsShown) {
		return state
	}
	if term.floor != fixed {
		term.floor = max(term.floor, end)
	}
	if facts.keepsShown {
		term.shown = max(term.shown, end)
	}
	state.terms = slices.Clone(state.terms)
	state.terms[place] = term
	return state
}

// isBegin returns whether all messages before the first one that is stored in the end have expired.
func (read Read) isBegin(facts *QueueFacts, log *Node) bool {
	for node := log.Cut(read.Begin); node.length > 0; node = node.before {
		if node.message.Digest != "" {
			return node.message.PhysicalOffset < facts.begin
		}
	}
	return true
}

// isComplete returns whether no acknowledged message of this process is beyond the end in the reply.
func (read Read) isComplete(log *Node) bool {
	for node := log; node.length > read.End; node = node.before {
		isKnown := node.sentAt >= read.Since && node.answeredAt < read.Called
		if isKnown && node.epoch == read.Epoch && node.broker == read.Broker {
			return false
		}
	}
	return true
}

func (read Read) String() string {
	text := fmt.Sprintf("read [%d, %d)", read.Begin, read.Begin+int64(len(read.Messages)))
	if read.IsSkip {
		text = fmt.Sprintf("read nothing, continue at %d", read.End)
	} else if read.Epoch >= 0 || read.IsWhole {
		text += fmt.Sprintf(" of %d", read.End)
	}
	return text + " from " + read.Broker
}
