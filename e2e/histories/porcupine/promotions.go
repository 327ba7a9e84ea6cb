package main

import (
	"math"
	"slices"
)

// Bounds limit when each term can have begun, over all queues.
//
// An epoch has begun when a master of it acknowledges a send that started in it. Until then, an older master may have
// acknowledged; a send that it acknowledged began before the epoch did. Both are necessary conditions, so a promotion
// with a shorter interval is legal exactly when it is with a longer one, and Porcupine has fewer orders to try.
type Bounds struct {
	first    map[int64]int64 // the time of the first acknowledgement in an epoch
	promoted []promotedEpoch // in their order
}

// A promotedEpoch is an epoch after the first one.
type promotedEpoch struct {
	epoch, called, returned int64
	start                   int64 // the physical offset of its start; -1 if the last master's log has no such epoch
}

// acknowledgement is an acknowledged send with the newest epoch in which it may have been appended.
type acknowledgement struct {
	epoch, sentAt, answeredAt, physicalOffset int64
	isWithin                                  bool // its epoch is certain
	isStored                                  bool
}

func (translation *Translation) acknowledgements() []acknowledgement {
	var found []acknowledgement
	for key, answer := range translation.answered {
		if answer.Outcome != "ok" {
			continue
		}
		sent := translation.sent[key]
		epochs := translation.epochsOf(sent, answer)
		_, isStored := translation.queues[sent.Queue].stored[key]
		found = append(found, acknowledgement{
			slices.Max(epochs), sent.At, answer.At, answer.PhysicalOffset, len(epochs) == 1, isStored,
		})
	}
	return found
}

// findBounds returns the promotions of a file. What a master has begun at a restart matters only if it may have lost
// messages.
func (translation *Translation) findBounds() Bounds {
	bounds := Bounds{first: map[int64]int64{}}
	acknowledgements := translation.acknowledgements()
	for _, one := range acknowledgements {
		if first, isFound := bounds.first[one.epoch]; one.isWithin && (!isFound || one.answeredAt < first) {
			bounds.first[one.epoch] = one.answeredAt
		}
	}
	called := map[int64]int64{}
	for _, term := range translation.terms {
		if at, isFound := called[term.Epoch]; !isFound || term.orderedAt() < at {
			called[term.Epoch] = term.orderedAt()
		}
	}
	starts := map[int64]int64{}
	for _, one := range translation.recording.Ended.Epochs {
		starts[one.Epoch] = one.Start
	}
	for epoch := range merge(called, starts) {
		_, isTerm := called[epoch]
		start, isListed := starts[epoch]
		if epoch <= translation.terms.Oldest() || (!isTerm && !translation.isLossy) {
			continue
		}
		if !isListed {
			start = -1
		}
		bounds.promoted = append(bounds.promoted, promotedEpoch{
			epoch, bounds.earliest(translation, acknowledgements, called, epoch, start), bounds.latest(epoch), start,
		})
	}
	slices.SortFunc(bounds.promoted, func(one, two promotedEpoch) int { return int(one.epoch - two.epoch) })
	for place, one := range bounds.promoted {
		if one.returned == math.MaxInt64 {
			bounds.promoted[place].returned = translation.never()
		}
	}
	return bounds
}

// latest returns the time by which an epoch must have begun: the first acknowledgement in it or in a newer one.
func (bounds Bounds) latest(epoch int64) int64 {
	latest := int64(math.MaxInt64)
	for other, at := range bounds.first {
		if other >= epoch {
			latest = min(latest, at)
		}
	}
	return latest
}

// earliest returns the time before which an epoch cannot have begun: the order, or the begin of a send that an older
// master acknowledged. A send that violates this is left to the judge: it began after a newer epoch's first
// acknowledgement.
func (bounds Bounds) earliest(
	translation *Translation, acknowledgements []acknowledgement, called map[int64]int64, epoch, start int64,
) int64 {
	at, isTerm := called[epoch]
	if !isTerm { // a master that has restarted: it began after the term before it
		for other, orderedAt := range called {
			if other < epoch {
				at = max(at, orderedAt)
			}
		}
	}
	for _, one := range acknowledgements {
		isLost := !one.isStored && start >= 0 && one.physicalOffset >= start
		if one.epoch < epoch && (isTerm || isLost) && one.sentAt <= bounds.latest(one.epoch+1) {
			at = max(at, one.sentAt)
		}
	}
	return at
}

// withRestarts returns the epochs together with those that the master of the last one began by itself, at a restart.
// Such an epoch has no term.
func (translation *Translation) withRestarts(epochs []int64) []int64 {
	if !translation.isLossy {
		return epochs
	}
	last := slices.Max(epochs)
	next := int64(math.MaxInt64)
	for _, term := range translation.terms {
		if term.Epoch > last {
			next = min(next, term.Epoch)
		}
	}
	for _, one := range translation.recording.Ended.Epochs {
		if one.Epoch > last && one.Epoch < next {
			epochs = append(epochs, one.Epoch)
		}
	}
	return epochs
}

// addPromotions adds the begin of every epoch to the history of a queue.
func (translation *Translation) addPromotions(history *queueHistory) {
	before := translation.terms.Oldest()
	for _, one := range translation.bounds.promoted {
		promotion := Promote{
			Epoch: one.epoch, Before: before, Length: translation.lengthAt(history, one.start), Start: one.start,
		}
		history.add(promotion, one.called, one.returned)
		before = one.epoch
	}
}

// lengthAt returns the number of messages in a queue at the start of an epoch; -1 if that is unknown, because the last
// master's log has no such epoch, or because the messages around its start have expired.
func (translation *Translation) lengthAt(history *queueHistory, start int64) int64 {
	if start < 0 || (start < translation.recording.Ended.Begin && history.facts.expired > 0) {
		return -1
	}
	for _, message := range history.contents.Messages {
		if message.PhysicalOffset >= start {
			return message.Offset
		}
	}
	return history.contents.End
}

// inLog returns those of several epochs in which the last master's log allows a message at this physical offset: if it
// is stored, the epoch of this part of the log; if it is lost, an older one. If it allows none, the order of the
// operations must show why.
func (translation *Translation) inLog(epochs []int64, key string, queue Queue, physicalOffset int64) []int64 {
	if len(epochs) == 1 || len(translation.recording.Ended.Epochs) == 0 {
		return epochs
	}
	inLog := translation.epochInLog(physicalOffset)
	_, isStored := translation.queues[queue].stored[key]
	possible := slices.DeleteFunc(slices.Clone(epochs), func(epoch int64) bool {
		return isStored && epoch != inLog || !isStored && epoch >= inLog
	})
	if len(possible) == 0 {
		return epochs
	}
	return possible
}

// epochInLog returns the epoch of what the last master's log has at an offset.
func (translation *Translation) epochInLog(physicalOffset int64) int64 {
	epoch := translation.terms.Oldest()
	for _, one := range translation.recording.Ended.Epochs {
		if one.Start <= physicalOffset {
			epoch = max(epoch, one.Epoch)
		}
	}
	return epoch
}

func merge(one, two map[int64]int64) map[int64]bool {
	keys := map[int64]bool{}
	for key := range one {
		keys[key] = true
	}
	for key := range two {
		keys[key] = true
	}
	return keys
}
