package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// A Queue is one queue of a topic. In the file it is an array of topic and number.
type Queue struct {
	Topic  string
	Number int64
}

func (queue Queue) String() string { return fmt.Sprintf("%s/%d", queue.Topic, queue.Number) }

// UnmarshalJSON reads the array.
func (queue *Queue) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&queue.Topic, &queue.Number})
}

// A Message is a stored message. In the file it is an array of key, digest, queue offset and physical offset.
type Message struct {
	Key            *string // nil if the body is corrupt
	Digest         string
	Offset         int64
	PhysicalOffset int64
}

// UnmarshalJSON reads the array.
func (message *Message) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&message.Key, &message.Digest, &message.Offset, &message.PhysicalOffset})
}

// An EpochStart is an epoch with the physical offset at which it starts in the last master's log.
type EpochStart struct {
	Epoch int64
	Start int64
}

// UnmarshalJSON reads the array.
func (start *EpochStart) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&start.Epoch, &start.Start})
}

// A CommittedOffset is the offset of a group at the last master.
type CommittedOffset struct {
	Client string
	Queue  Queue
	Offset int64
}

// UnmarshalJSON reads the array.
func (committed *CommittedOffset) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&committed.Client, &committed.Queue, &committed.Offset})
}

// An Event is a line of the file with the fields of all kinds of events. The Python modules `events` and `recording`
// define the format and describe every field.
type Event struct {
	Kind           string `json:"event"`
	Client         string `json:"client"`
	Stream         int64  `json:"stream"`
	Key            *string
	Queue          Queue
	Digest         string
	Outcome        string
	Broker         string
	Epoch          int64
	IsEstimated    bool  `json:"is_estimated"`
	QueueOffset    int64 `json:"queue_offset"`
	PhysicalOffset int64 `json:"physical_offset"`
	Offset         int64
	Begin          int64
	Next           int64
	End            int64
	Count          int
	Connected      int64
	Called         int64
	At             int64

	Messages          []Message
	Loss              string
	ShowsAcknowledged bool `json:"shows_acknowledged"`
	KeepsShown        bool `json:"keeps_shown"`
	Epochs            []EpochStart
	Committed         []CommittedOffset
}

// A Recording is the file of a complete run.
type Recording struct {
	Events   []Event
	Contents []Event
	Ended    Event
	last     int64 // the time of the last event
}

// ReadRecording reads a file. It fails if the last line is missing, because its run did not complete.
func ReadRecording(file io.Reader) (*Recording, error) {
	recording, isComplete := &Recording{}, false
	lines := bufio.NewReaderSize(file, 1<<20)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		event := Event{Epoch: -1, QueueOffset: -1, PhysicalOffset: -1}
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		switch event.Kind {
		case "sent", "answered", "shown", "read", "committed", "commit_answered", "offset_read", "term":
			recording.Events = append(recording.Events, event)
			recording.last = max(recording.last, event.At)
		case "contents":
			recording.Contents = append(recording.Contents, event)
		case "ended":
			recording.Ended, isComplete = event, true
		default:
			return nil, fmt.Errorf("line %d: event %q, expected one of gantry_histories.events", number, event.Kind)
		}
	}
	if !isComplete {
		return nil, fmt.Errorf("no line \"ended\": the run of this file did not complete, run it again")
	}
	return recording, nil
}
