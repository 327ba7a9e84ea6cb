package main

import (
	"cmp"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A Verdict is the result for a whole file.
type Verdict struct {
	Verdict    porcupine.CheckResult `json:"verdict"`
	Partitions int                   `json:"partitions"`
	Operations int                   `json:"operations"`
	Seconds    float64               `json:"seconds"`
	// Of the first partition that is not legal, or was not decided in time; empty if there is none.
	Partition string `json:"partition"`
	Evidence  string `json:"evidence"` // the operation that has no place in the longest legal order
	Picture   string `json:"picture"`  // the file with its picture
}

// Judge checks the partitions, one after the other, until one of them is not legal or the time is over.
func Judge(partitions []Partition, timeout time.Duration, picture string) (Verdict, error) {
	began := time.Now()
	verdict := Verdict{Verdict: porcupine.Ok, Partitions: len(partitions)}
	for _, partition := range partitions {
		verdict.Operations += len(partition.Operations)
	}
	var err error
	for _, partition := range partitions {
		rest := max(timeout-time.Since(began), time.Millisecond)
		attempt := newAttempt(partition)
		result := porcupine.CheckOperationsTimeout(attempt.model, attempt.operations, rest)
		if result == porcupine.Ok {
			continue
		}
		verdict.Verdict, verdict.Partition = result, partition.Name
		if result == porcupine.Illegal {
			verdict.Evidence, err = attempt.explain(picture)
			if picture != "" && err == nil {
				verdict.Picture = picture
			}
			break
		}
	}
	verdict.Seconds = time.Since(began).Seconds()
	return verdict, err
}

// shown is the number of operations in a picture before the one that has no place.
const shown = 200

// explanation is the time to order the operations of a picture again.
const explanation = 10 * time.Second

// An attempt is the check of one partition. It remembers the longest legal order that Porcupine has tried, since what
// has no place in it is the evidence.
type attempt struct {
	partition  Partition
	model      porcupine.Model
	operations []porcupine.Operation
	wasLegal   []bool // whether each operation had a place in any order
	longest    *step
}

// A step is a state with the order of operations that leads to it. Steps with equal states are equal.
type step struct {
	state  any
	before *step
	place  int // of the operation, in the partition
	length int // of the order
}

// newAttempt returns the partition with the place of each operation as its input.
func newAttempt(partition Partition) *attempt {
	model, initial := partition.Model, &step{state: partition.Model.Init()}
	attempt := &attempt{
		partition: partition, model: model, wasLegal: make([]bool, len(partition.Operations)), longest: initial,
	}
	for place, one := range partition.Operations {
		one.Input = place
		attempt.operations = append(attempt.operations, one)
	}
	attempt.model.Init = func() any { return initial }
	attempt.model.Step = func(state, input, _ any) (bool, any) { return attempt.take(state.(*step), input.(int)) }
	attempt.model.Equal = func(one, two any) bool { return model.Equal(one.(*step).state, two.(*step).state) }
	if model.Hash != nil {
		attempt.model.Hash = func(state any) uint64 { return model.Hash(state.(*step).state) }
	}
	attempt.model.DescribeState = func(state any) string { return model.DescribeState(state.(*step).state) }
	attempt.model.DescribeOperation = func(input, output any) string {
		return model.DescribeOperation(partition.Operations[input.(int)].Input, output)
	}
	return attempt
}

// take returns whether an operation is legal after a step, and the next step.
func (attempt *attempt) take(before *step, place int) (bool, any) {
	isLegal, state := attempt.partition.Model.Step(before.state, attempt.partition.Operations[place].Input, nil)
	if !isLegal {
		return false, before
	}
	next := &step{state, before, place, before.length + 1}
	attempt.wasLegal[place] = true
	if next.length > attempt.longest.length {
		attempt.longest = next
	}
	return true, next
}

// explain returns the first operation that has no place, and draws it with those before it in the longest order.
func (attempt *attempt) explain(picture string) (string, error) {
	isPlaced := make([]bool, len(attempt.operations))
	for step := attempt.longest; step.before != nil; step = step.before {
		isPlaced[step.place] = true
	}
	failed := attempt.first(func(place int) bool { return !attempt.wasLegal[place] })
	if failed < 0 { // each had a place in some order, but not all in one
		failed = attempt.first(func(place int) bool { return !isPlaced[place] })
	}
	end := attempt.longest
	for end.before != nil && attempt.operations[end.place].Call > attempt.operations[failed].Return {
		end = end.before
	}
	evidence := attempt.model.DescribeOperation(failed, nil) + ", after " + attempt.model.DescribeState(end)
	if picture == "" {
		return evidence, nil
	}
	return evidence, attempt.draw(end, failed, picture)
}

// first returns the place of the operation that has returned first, of those that meet a condition; -1 if none does.
func (attempt *attempt) first(isMet func(place int) bool) int {
	found := -1
	for place, one := range attempt.operations {
		if isMet(place) && (found < 0 || one.Return < attempt.operations[found].Return) {
			found = place
		}
	}
	return found
}

// draw writes the picture of the failed operation and of the last ones before a step. It begins with the state after
// all earlier ones.
func (attempt *attempt) draw(end *step, failed int, path string) error {
	operations := []porcupine.Operation{attempt.operations[failed]}
	for end.before != nil && len(operations) <= shown {
		operations = append(operations, attempt.operations[end.place])
		end = end.before
	}
	model := attempt.model
	model.Init = func() any { return end }
	setLanes(operations)
	_, information := porcupine.CheckOperationsVerbose(model, operations, explanation)
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return porcupine.Visualize(model, information, file)
}

// setLanes gives each operation a line of the picture in which no other one is at that time.
func setLanes(operations []porcupine.Operation) {
	slices.SortStableFunc(operations, func(one, two porcupine.Operation) int { return cmp.Compare(one.Call, two.Call) })
	var free []int64 // the time from which each line is free
	for place := range operations {
		one := &operations[place]
		one.ClientId = 0
		for one.ClientId < len(free) && free[one.ClientId] >= one.Call {
			one.ClientId++
		}
		if one.ClientId == len(free) {
			free = append(free, 0)
		}
		free[one.ClientId] = one.Return
	}
}
