package main

import (
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// A Partition is the history of one queue, or of the offset of one group in one queue. It is judged alone.
type Partition struct {
	Name       string
	Model      porcupine.Model
	Operations []porcupine.Operation
}

// A Translation derives the operations of all partitions from the events of a file.
type Translation struct {
	recording *Recording
	terms     Terms
	sent      map[string]*Event
	answered  map[string]*Event
	queues    map[Queue]*queueHistory
	order     []Queue
	offsets   map[groupQueue]*offsetHistory
	groups    []groupQueue
	bounds    Bounds
	isLossy   bool
}

type groupQueue struct {
	Client string
	Queue  Queue
}

// A queueHistory collects what the file has about a queue.
type queueHistory struct {
	contents   Event
	shown      map[string][]*Event // by key, of messages that are not corrupt
	stored     map[string]Message  // the first place of each key
	operations []porcupine.Operation
	unread     map[string][]*Event // by client: shown, and not yet part of a read
	facts      QueueFacts
}

// Times after the last event: the contents are read when all is over, and what was never answered ends after that.
func (translation *Translation) afterEnd(ticks int64) int64 {
	return translation.recording.last + ticks
}

func (translation *Translation) never() int64 { return translation.afterEnd(3) }

// Translate returns the partitions of a file.
func Translate(recording *Recording) []Partition {
	translation := &Translation{
		recording: recording, sent: map[string]*Event{}, answered: map[string]*Event{},
		queues: map[Queue]*queueHistory{}, offsets: map[groupQueue]*offsetHistory{},
		isLossy: recording.Ended.Loss == "suffix",
	}
	for place := range recording.Contents {
		contents := &recording.Contents[place]
		history := translation.queue(contents.Queue)
		history.contents = *contents
		for _, message := range contents.Messages {
			if message.Key != nil {
				if _, isFound := history.stored[*message.Key]; !isFound {
					history.stored[*message.Key] = message
				}
			}
		}
	}
	translation.index()
	translation.bounds = translation.findBounds()
	translation.addSends()
	translation.addReads()
	var partitions []Partition
	for _, queue := range translation.order {
		translation.addPromotions(translation.queues[queue])
		translation.addContents(translation.queues[queue])
		partitions = append(partitions, translation.queues[queue].partition(queue, translation.terms.Oldest()))
	}
	return append(partitions, translation.offsetPartitions()...)
}

// queue returns the history of a queue, which is new if the queue is.
func (translation *Translation) queue(queue Queue) *queueHistory {
	history := translation.queues[queue]
	if history == nil {
		history = &queueHistory{
			contents: Event{Queue: queue}, shown: map[string][]*Event{}, stored: map[string]Message{},
			unread: map[string][]*Event{},
			facts: QueueFacts{
				isLossy: translation.isLossy, keepsShown: translation.recording.Ended.KeepsShown,
				begin: translation.recording.Ended.Begin, known: map[int64][]int64{},
			},
		}
		translation.queues[queue] = history
		translation.order = append(translation.order, queue)
	}
	return history
}

// index collects the events that are needed before the others are translated.
func (translation *Translation) index() {
	for place := range translation.recording.Events {
		event := &translation.recording.Events[place]
		switch event.Kind {
		case "sent":
			translation.sent[*event.Key] = event
			translation.queue(event.Queue)
		case "answered":
			translation.answered[*event.Key] = event
		case "shown":
			if event.Key != nil {
				history := translation.queue(event.Queue)
				history.shown[*event.Key] = append(history.shown[*event.Key], event)
			}
		case "term":
			translation.terms = append(translation.terms, Term{event.Epoch, event.Broker, event.At, event.IsEstimated})
		}
	}
	for _, history := range translation.queues {
		history.facts.expired = history.contents.End
		if len(history.contents.Messages) > 0 {
			history.facts.expired = history.contents.Messages[0].Offset
		}
	}
}

// addSends adds an operation for every send that was not refused.
func (translation *Translation) addSends() {
	after := map[lane]int64{}
	for place := range translation.recording.Events {
		event := &translation.recording.Events[place]
		if event.Kind != "sent" {
			continue
		}
		answer := translation.answered[*event.Key]
		switch {
		case answer != nil && answer.Outcome == "ok":
			translation.addAcknowledged(event, answer, after)
		case answer == nil || answer.Outcome == "unknown":
			translation.addUnknown(event)
		}
	}
}

// A lane is a connection of a producer and a queue: its messages have the order in which they were sent.
type lane struct {
	client string
	stream int64
	queue  Queue
}

// addAcknowledged adds a send with the outcome 0.
func (translation *Translation) addAcknowledged(sent, answer *Event, after map[lane]int64) {
	history := translation.queue(sent.Queue)
	send := Append{
		Key: *sent.Key, Message: Identity{sent.Digest, answer.PhysicalOffset}, Offset: answer.QueueOffset, After: -1,
		Epochs: translation.withRestarts(translation.epochsOf(sent, answer)), SentAt: sent.At, Answered: answer.At,
		Broker: answer.Broker,
	}
	if _, isStored := history.stored[*sent.Key]; isStored {
		key := lane{sent.Client, sent.Stream, sent.Queue}
		if before, isFound := after[key]; isFound {
			send.After = before
		}
		after[key] = send.Offset
	}
	if len(send.Epochs) == 1 {
		history.know(send.Offset, send.Epochs[0])
	}
	history.add(send, sent.At, answer.At)
}

// epochsOf returns the epochs of terms in which an acknowledged message may have been appended.
func (translation *Translation) epochsOf(sent, answer *Event) []int64 {
	if answer.Epoch >= 0 {
		return []int64{answer.Epoch}
	}
	first := translation.terms.EpochAt(answer.Broker, sent.At)
	last := translation.terms.EpochAt(answer.Broker, answer.At)
	epochs := translation.terms.EpochsBetween(answer.Broker, first, last)
	epochs = append(epochs, translation.terms.Renewed(answer.Broker, first)...)
	return translation.inLog(epochs, *sent.Key, sent.Queue, answer.PhysicalOffset)
}

// addUnknown adds a send without a certain outcome. If its message was seen, it has taken effect; else this is open.
func (translation *Translation) addUnknown(sent *Event) {
	history := translation.queue(sent.Queue)
	send := Append{Key: *sent.Key, After: -1, SentAt: sent.At}
	if message, isStored := history.stored[*sent.Key]; isStored {
		send.Message, send.Offset = Identity{sent.Digest, message.PhysicalOffset}, message.Offset
		history.know(send.Offset, translation.epochInLog(message.PhysicalOffset))
		history.add(send, sent.At, translation.never())
		return
	}
	if len(history.shown[*sent.Key]) == 0 {
		history.add(Open{*sent.Key}, sent.At, sent.At)
		return
	}
	send.IsStray = true
	for _, shown := range history.shown[*sent.Key] {
		send.Message, send.Offset = Identity{sent.Digest, shown.PhysicalOffset}, shown.QueueOffset
		send.EpochMax = max(send.EpochMax, translation.terms.NewestAt(shown.Broker, shown.At))
	}
	history.add(send, sent.At, translation.never())
}

// addReads adds the replies to pulls. A message that was shown without such a reply is a read of its own.
func (translation *Translation) addReads() {
	for place := range translation.recording.Events {
		event := &translation.recording.Events[place]
		switch event.Kind {
		case "shown":
			history := translation.queue(event.Queue)
			history.unread[event.Client] = append(history.unread[event.Client], event)
		case "read":
			translation.addRead(event)
		case "committed", "commit_answered", "offset_read":
			translation.addOffsetEvent(event)
		}
	}
	for _, history := range translation.queues {
		for _, events := range history.unread {
			for _, shown := range events {
				messages := []Identity{{shown.Digest, shown.PhysicalOffset}}
				read := Read{Begin: shown.QueueOffset, Messages: messages, Broker: shown.Broker, Epoch: -1, End: -1}
				history.add(read, shown.At, shown.At)
				moved := Continued{shown.QueueOffset, shown.QueueOffset + 1, 0, Connection{shown.Broker, shown.At}}
				translation.offsetsOf(shown.Client, shown.Queue).add(moved, shown.At, shown.At)
			}
		}
	}
}

// addRead adds one reply with the messages that were shown just before it.
func (translation *Translation) addRead(event *Event) {
	history := translation.queue(event.Queue)
	unread := history.unread[event.Client]
	shown := unread[len(unread)-event.Count:]
	history.unread[event.Client] = unread[:len(unread)-event.Count]
	moved := Continued{event.Begin, event.Next, event.End, Connection{event.Broker, event.Connected}}
	translation.offsetsOf(event.Client, event.Queue).add(moved, event.Called, event.At)
	read := Read{Broker: event.Broker, Epoch: -1, End: -1}
	if term, isCurrent := translation.terms.Current(event.Broker, event.At); isCurrent && event.End >= 0 &&
		translation.recording.Ended.ShowsAcknowledged {
		read.Epoch, read.End, read.Since = term.Epoch, event.End, max(event.Connected, term.At)
		read.Called = event.Called
	}
	begin := event.Begin
	if len(shown) > 0 {
		if shown[0].QueueOffset > begin { // the messages before it have expired
			history.add(Read{IsSkip: true, End: shown[0].QueueOffset, Broker: event.Broker}, event.Called, event.At)
		}
		begin = shown[0].QueueOffset
		for place, one := range shown {
			if one.QueueOffset != begin+int64(place) { // never equal to a message: the offsets are not dense
				one.PhysicalOffset = math.MinInt64
			}
			read.Messages = append(read.Messages, Identity{one.Digest, one.PhysicalOffset})
		}
		read.Begin = begin
	}
	if continued := begin + int64(len(shown)); event.Next > continued {
		history.add(Read{IsSkip: true, End: event.Next, Broker: event.Broker}, event.Called, event.At)
	}
	if len(shown) > 0 || read.Epoch >= 0 {
		history.add(read, event.Called, event.At)
	}
}

// addContents adds the reading of the whole queue after the end.
func (translation *Translation) addContents(history *queueHistory) {
	read := Read{
		Begin: history.facts.expired, End: history.contents.End, Broker: "the last master", Epoch: -1, IsWhole: true,
	}
	for place, message := range history.contents.Messages {
		identity := Identity{message.Digest, message.PhysicalOffset}
		if message.Key == nil || message.Offset != read.Begin+int64(place) {
			identity.PhysicalOffset = math.MinInt64
		}
		read.Messages = append(read.Messages, identity)
	}
	history.add(read, translation.afterEnd(1), translation.afterEnd(2))
}

func (history *queueHistory) know(offset, epoch int64) {
	history.facts.known[offset] = append(history.facts.known[offset], epoch)
}

func (history *queueHistory) add(operation QueueOperation, called, returned int64) {
	history.operations = append(history.operations, porcupine.Operation{Input: operation, Call: called, Return: returned})
}

// partition returns the history with its model.
func (history *queueHistory) partition(queue Queue, oldest int64) Partition {
	facts := &history.facts
	slices.SortStableFunc(history.operations, func(one, two porcupine.Operation) int { return int(one.Call - two.Call) })
	return Partition{queue.String(), porcupine.Model{
		Init: func() any { return QueueState{terms: []TermLog{{oldest, NewLog(), fixed, 0}}} },
		Step: func(state, input, _ any) (bool, any) {
			next, isLegal := input.(QueueOperation).Step(facts, state.(QueueState))
			return isLegal, next
		},
		Equal:             func(one, two any) bool { return one.(QueueState).Equal(two.(QueueState)) },
		Hash:              func(state any) uint64 { return state.(QueueState).Hash() },
		DescribeOperation: func(input, _ any) string { return input.(QueueOperation).String() },
		DescribeState:     func(state any) string { return state.(QueueState).String() },
	}, history.operations}
}
