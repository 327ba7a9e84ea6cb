package main

import (
	"os"
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
		result := porcupine.CheckOperationsTimeout(partition.Model, partition.Operations, rest)
		if result == porcupine.Ok {
			continue
		}
		verdict.Verdict, verdict.Partition = result, partition.Name
		if result == porcupine.Illegal {
			verdict.Evidence, err = explain(partition, timeout, picture)
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

// explain returns the first operation that is in no longest legal order, and draws those around it.
func explain(partition Partition, timeout time.Duration, picture string) (string, error) {
	_, information := porcupine.CheckOperationsVerbose(partition.Model, partition.Operations, timeout)
	longest, state := longestOrder(partition, information)
	isPlaced := make([]bool, len(partition.Operations))
	for _, place := range longest {
		isPlaced[place] = true
	}
	var failed *porcupine.Operation
	for place := range partition.Operations {
		one := &partition.Operations[place]
		if !isPlaced[place] && (failed == nil || one.Return < failed.Return) {
			failed = one
		}
	}
	if failed == nil {
		return "", nil
	}
	evidence := partition.Model.DescribeOperation(failed.Input, nil) + ", after " + partition.Model.DescribeState(state)
	if picture == "" {
		return evidence, nil
	}
	return evidence, draw(partition, longest, isPlaced, failed, picture)
}

// longestOrder returns the longest legal order, and the state after it.
func longestOrder(partition Partition, information porcupine.LinearizationInfo) ([]int, any) {
	var longest []int
	for _, order := range information.PartialLinearizations()[0] {
		if len(order) > len(longest) {
			longest = order
		}
	}
	return longest, replay(partition, longest)
}

func replay(partition Partition, order []int) any {
	state := partition.Model.Init()
	for _, place := range order {
		_, state = partition.Model.Step(state, partition.Operations[place].Input, nil)
	}
	return state
}

// draw writes the picture of the failed operation with those that were called until it returned. If there are many, the
// picture begins with the state after all but the last of them.
func draw(partition Partition, longest []int, isPlaced []bool, failed *porcupine.Operation, path string) error {
	model, skipped := partition.Model, max(0, len(longest)-shown)
	begin := replay(partition, longest[:skipped])
	model.Init = func() any { return begin }
	isSkipped := make([]bool, len(partition.Operations))
	for _, place := range longest[:skipped] {
		isSkipped[place] = true
	}
	var operations []porcupine.Operation
	var lanes []int64 // the time at which each line of the picture is free
	for place, one := range partition.Operations {
		if isSkipped[place] || (!isPlaced[place] && one.Call > failed.Return) {
			continue
		}
		one.ClientId = 0
		for one.ClientId < len(lanes) && lanes[one.ClientId] >= one.Call {
			one.ClientId++
		}
		if one.ClientId == len(lanes) {
			lanes = append(lanes, 0)
		}
		lanes[one.ClientId] = one.Return
		operations = append(operations, one)
	}
	_, information := porcupine.CheckOperationsVerbose(model, operations, 10*time.Second)
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return porcupine.Visualize(model, information, file)
}
