package main

import (
	"math"
	"slices"
)

// A Term is the time from which a broker may be the master of an epoch.
type Term struct {
	Epoch  int64
	Broker string
	At     int64

	// At is only the first acknowledgement that is known to be of this term, which began earlier.
	IsEstimated bool
}

// orderedAt returns a time before which the term did not begin.
func (term Term) orderedAt() int64 {
	if term.IsEstimated {
		return 0
	}
	return term.At
}

// Terms are all terms of a run, in the order in which they were recorded.
//
// A client does not know epochs, but it knows which broker answered and when. An answer belongs to the newest epoch for
// which this broker had been promoted by then, and a broker without a term has the oldest epoch.
type Terms []Term

// Oldest returns the oldest epoch; 0 without any term.
func (terms Terms) Oldest() int64 {
	oldest := int64(math.MaxInt64)
	for _, term := range terms {
		oldest = min(oldest, term.Epoch)
	}
	if len(terms) == 0 {
		return 0
	}
	return oldest
}

// EpochAt returns the epoch of a broker at a time.
func (terms Terms) EpochAt(broker string, at int64) int64 {
	epoch, isFound := int64(0), false
	for _, term := range terms {
		if term.Broker == broker && term.At <= at && (!isFound || term.Epoch > epoch) {
			epoch, isFound = term.Epoch, true
		}
	}
	if !isFound {
		return terms.Oldest()
	}
	return epoch
}

// NewestAt returns the newest epoch that a broker may have had at a time.
func (terms Terms) NewestAt(broker string, at int64) int64 {
	newest := terms.EpochAt(broker, at)
	for _, term := range terms {
		if term.Broker == broker && term.IsEstimated {
			newest = max(newest, term.Epoch)
		}
	}
	return newest
}

// EpochsBetween returns the epochs of a broker from one of its epochs to another.
func (terms Terms) EpochsBetween(broker string, first, last int64) []int64 {
	epochs := []int64{first}
	for _, term := range terms {
		if term.Broker == broker && term.Epoch > first && term.Epoch <= last {
			epochs = append(epochs, term.Epoch)
		}
	}
	if last != first && epochs[len(epochs)-1] != last {
		epochs = append(epochs, last)
	}
	return epochs
}

// Renewed returns the epochs that this master had directly before one of its epochs. A term is recorded before the
// order, so when a master gets a new epoch, what it acknowledges soon after that may belong to the epoch before.
func (terms Terms) Renewed(broker string, epoch int64) []int64 {
	var renewed []int64
	for {
		before := int64(math.MinInt64)
		for _, term := range terms {
			if term.Epoch < epoch {
				before = max(before, term.Epoch)
			}
		}
		if !slices.ContainsFunc(terms, func(term Term) bool { return term.Epoch == before && term.Broker == broker }) {
			return renewed
		}
		renewed = append(renewed, before)
		epoch = before
	}
}

// Current returns the newest term of a time, if it is one of this broker.
func (terms Terms) Current(broker string, at int64) (Term, bool) {
	newest := int64(math.MinInt64)
	for _, term := range terms {
		if term.At <= at {
			newest = max(newest, term.Epoch)
		}
	}
	for _, term := range terms {
		if term.Broker == broker && term.Epoch == newest {
			return term, true
		}
	}
	return Term{Broker: broker}, len(terms) == 0
}
