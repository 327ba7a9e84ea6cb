package main

import "github.com/anishathalye/porcupine"

// An offsetHistory collects the operations of one group in one queue.
type offsetHistory struct {
	operations []porcupine.Operation
	begun      int64 // when the last commit was requested: a client has one at a time
}

// offsetsOf returns the history of a group in a queue, which is new if the group is.
func (translation *Translation) offsetsOf(client string, queue Queue) *offsetHistory {
	key := groupQueue{client, queue}
	history := translation.offsets[key]
	if history == nil {
		history = &offsetHistory{}
		translation.offsets[key] = history
		translation.groups = append(translation.groups, key)
	}
	return history
}

func (translation *Translation) addOffsetEvent(event *Event) {
	history := translation.offsetsOf(event.Client, event.Queue)
	connection := Connection{event.Broker, event.Connected}
	switch event.Kind {
	case "committed":
		history.begun = event.At
		history.add(CommitBegun{event.Offset}, event.At, event.At)
	case "commit_answered":
		history.add(CommitDone{event.Offset, connection}, history.begun, event.At)
	case "offset_read":
		_, isCurrent := translation.terms.Current(event.Broker, event.At)
		history.add(OffsetReturned{event.Offset, connection, isCurrent}, event.Called, event.At)
	}
}

func (history *offsetHistory) add(operation OffsetOperation, called, returned int64) {
	history.operations = append(history.operations, porcupine.Operation{Input: operation, Call: called, Return: returned})
}

// offsetPartitions returns the histories of all groups with their model.
func (translation *Translation) offsetPartitions() []Partition {
	for _, committed := range translation.recording.Ended.Committed {
		end := translation.queue(committed.Queue).contents.End
		history := translation.offsetsOf(committed.Client, committed.Queue)
		history.add(OffsetAtEnd{committed.Offset, end}, translation.afterEnd(1), translation.afterEnd(2))
	}
	var partitions []Partition
	for _, key := range translation.groups {
		partitions = append(partitions, Partition{
			"group " + key.Client + " in " + key.Queue.String(), offsetModel(), translation.offsets[key].operations,
		})
	}
	return partitions
}

func offsetModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return OffsetState{offset: -1, highest: -1, position: -1} },
		Step: func(state, input, _ any) (bool, any) {
			next, isLegal := input.(OffsetOperation).Step(state.(OffsetState))
			return isLegal, next
		},
		Equal:             func(one, two any) bool { return one.(OffsetState).Equal(two.(OffsetState)) },
		DescribeOperation: func(input, _ any) string { return input.(OffsetOperation).String() },
		DescribeState:     func(state any) string { return state.(OffsetState).String() },
	}
}
