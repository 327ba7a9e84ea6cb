package main

import (
	"math/rand"
	"strconv"
	"testing"
)

func message(number int64) Identity { return Identity{strconv.FormatInt(number, 10), number * 100} }

func logOf(length int64) *Node {
	log := NewLog()
	for number := int64(0); number < length; number++ {
		log = log.Push(Node{message: message(number), sentAt: number, answeredAt: number + 10, broker: "a", epoch: 1})
	}
	return log
}

func TestLogFindsMessagesAtEveryOffset(t *testing.T) {
	log := logOf(1000)
	for attempt := 0; attempt < 1000; attempt++ {
		begin := rand.Int63n(1000)
		end := begin + rand.Int63n(1000-begin)
		var messages []Identity
		for number := begin; number < end; number++ {
			messages = append(messages, message(number))
		}
		if cut := log.Cut(end); cut.length != end || cut.hash != logOf(end).hash {
			t.Fatalf("cut at %d has %d messages", end, cut.length)
		}
		if !log.Has(begin, messages) {
			t.Fatalf("[%d, %d) is missing", begin, end)
		}
		if end > begin && log.Has(begin+1, messages) {
			t.Fatalf("[%d, %d) is at the next offset, too", begin, end)
		}
	}
}

func TestOpenSendIsReplacedWhenItIsSeen(t *testing.T) {
	log := logOf(2).Push(Node{sentAt: -1}).Push(Node{message: message(3)})
	replaced, isOpen := log.replace(2, message(2))
	if !isOpen || !replaced.Has(1, []Identity{message(1), message(2), message(3)}) {
		t.Fatal("expected the message in the place of the open send")
	}
	if _, isOpen := replaced.replace(2, message(7)); isOpen {
		t.Fatal("expected that a known message stays")
	}
}

func start(length int64) QueueState {
	return QueueState{terms: []TermLog{{1, logOf(length), fixed, 0}}}
}

func TestAcknowledgementNeedsTheTermOfItsMaster(t *testing.T) {
	facts := &QueueFacts{}
	send := Append{Message: message(2), Offset: 2, After: -1, Epochs: []int64{1}, Broker: "a"}
	state, isLegal := send.Step(facts, start(2))
	if !isLegal || state.top().log.length != 3 {
		t.Fatal("expected the message at the end of the log")
	}
	promoted, isLegal := Promote{Epoch: 2, Before: 1, Length: 2}.Step(facts, start(2))
	if !isLegal {
		t.Fatal("expected a promotion")
	}
	if _, isLegal := send.Step(facts, promoted); isLegal {
		t.Fatal("expected that a deposed master acknowledges nothing")
	}
	send.Offset = 3
	if _, isLegal := send.Step(facts, start(2)); isLegal {
		t.Fatal("expected that no offset is left out")
	}
}

func TestPromotionCutsOnlyInALossyMode(t *testing.T) {
	promotion := Promote{Epoch: 2, Before: 1, Length: 2, Start: 200}
	if _, isLegal := promotion.Step(&QueueFacts{}, start(4)); isLegal {
		t.Fatal("expected that nothing is lost")
	}
	state, isLegal := promotion.Step(&QueueFacts{isLossy: true}, start(4))
	if !isLegal || state.top().log.length != 2 || state.terms[0].log.length != 4 {
		t.Fatal("expected the old log, and the new one without its end")
	}
	read := Read{Begin: 2, Messages: []Identity{message(2)}, Epoch: -1}
	for keepsShown, expected := range map[bool]bool{true: false, false: true} {
		facts := &QueueFacts{isLossy: true, keepsShown: keepsShown}
		shown, _ := read.Step(facts, start(4))
		if _, isLegal := promotion.Step(facts, shown); isLegal != expected {
			t.Fatalf("expected %t with keepsShown=%t", expected, keepsShown)
		}
	}
	promotion.Start = 300 // the message at offset 2 is before the start of the new term
	if _, isLegal := promotion.Step(&QueueFacts{isLossy: true}, start(4)); isLegal {
		t.Fatal("expected that only the part after the start is lost")
	}
}

func TestOpenSendFillsOnlyUnknownOffsets(t *testing.T) {
	facts := &QueueFacts{isLossy: true, known: map[int64][]int64{}}
	send := Append{Message: message(3), Offset: 3, After: -1, Epochs: []int64{1}}
	if _, isLegal := send.Step(facts, start(2)); isLegal {
		t.Fatal("expected that a hole needs an open send")
	}
	open, _ := Open{}.Step(facts, start(2))
	state, isLegal := send.Step(facts, open)
	if !isLegal || state.open != 0 || state.top().log.length != 4 {
		t.Fatal("expected the open send in the hole")
	}
	facts.known[2] = []int64{1}
	if _, isLegal := send.Step(facts, open); isLegal {
		t.Fatal("expected that the place of a known message stays free")
	}
}

func TestMasterShowsWhatItsProcessHasAcknowledged(t *testing.T) {
	facts := &QueueFacts{}
	read := Read{Begin: 1, Messages: []Identity{message(1)}, Broker: "a", Epoch: 1, End: 2, Since: 2, Called: 20}
	for _, one := range []struct {
		change  func(*Read)
		isLegal bool
	}{
		{func(*Read) {}, false},
		{func(read *Read) { read.End = 3 }, true},
		{func(read *Read) { read.Called = 12 }, true}, // the message was acknowledged later
		{func(read *Read) { read.Since = 3 }, true},   // the process is younger than the message
		{func(read *Read) { read.Epoch = -1 }, true},  // the broker is not the master
		{func(read *Read) { read.Broker = "b" }, true},
		{func(read *Read) { read.Begin, read.End = 2, 3 }, false}, // another message
	} {
		changed := read
		one.change(&changed)
		if _, isLegal := changed.Step(facts, start(3)); isLegal != one.isLegal {
			t.Fatalf("%s: %t", changed, isLegal)
		}
	}
}

func TestStatesWithEqualLogsAreEqual(t *testing.T) {
	one, two := start(3), start(3)
	if !one.Equal(two) || one.Hash() != two.Hash() {
		t.Fatal("expected equal states")
	}
	for _, other := range []QueueState{start(4), {terms: one.terms, open: 1}, one.with(0, logOf(3), 1)} {
		if one.Equal(other) || one.Hash() == other.Hash() {
			t.Fatalf("expected another state than %s", other)
		}
	}
}

func TestOffsetIsTheLastConfirmedOne(t *testing.T) {
	connection, other := Connection{"a", 5}, Connection{"b", 6}
	state := OffsetState{offset: -1, highest: -1, position: -1}
	for number, one := range []struct {
		operation OffsetOperation
		isLegal   bool
	}{
		{CommitBegun{3}, false}, // nothing was read
		{Continued{0, 5, 4, connection}, true},
		{Continued{6, 7, 7, connection}, false}, // a message was skipped
		{CommitBegun{3}, true},
		{CommitDone{3, connection}, true},
		{CommitBegun{5}, true}, // never confirmed
		{OffsetReturned{2, connection, true}, false},
		{OffsetReturned{3, connection, true}, true},
		{OffsetReturned{5, connection, true}, true}, // the commit has taken effect
		{OffsetReturned{2, connection, false}, true},
		{OffsetReturned{1, other, true}, true}, // a replica may have an older offset
		{OffsetReturned{6, other, true}, false},
		{CommitBegun{5}, true},
		{CommitDone{5, connection}, true}, // the broker may lower it, because it has shown the queue up to 4
		{OffsetReturned{4, connection, true}, true},
		{OffsetReturned{5, connection, true}, false},
		{OffsetAtEnd{5, 5}, true},
		{OffsetAtEnd{6, 5}, false},
	} {
		next, isLegal := one.operation.Step(state)
		if isLegal != one.isLegal {
			t.Fatalf("step %d, %s: %t", number, one.operation, isLegal)
		}
		if isLegal {
			state = next
		}
	}
}
