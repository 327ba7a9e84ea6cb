package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/google/uuid"
)

const (
	invisible    = 60 * time.Second
	await        = 6 * time.Second
	batch        = 32
	senders      = 16
	receivers    = 4
	basePatience = 90 * time.Second
	// slowest is the number of messages a second that a run may at least expect of a busy machine.
	slowest = 40
	// recallable is the time that a message waits which may be recalled.
	recallable = 12 * time.Second
	// joining is the time in which a push consumer begins to receive: a new group starts at the end of a queue.
	joining = 4 * time.Second
)

// run is one flow: its names, and the helpers that send and receive.
type run struct {
	endpoints, suffix, flow, id string
	count                       int
}

// patience is the time within which all messages of this flow must have arrived.
func (r *run) patience() time.Duration {
	return basePatience + time.Duration(r.count/slowest)*time.Second
}

func (r *run) topic(kind string) string { return "sdk-" + kind + r.suffix }

func (r *run) config(group string) *rmq.Config {
	return &rmq.Config{Endpoint: r.endpoints, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func (r *run) group() string { return "sdk-" + r.flow + r.suffix }

func (r *run) producer(kind string, more ...rmq.ProducerOption) (rmq.Producer, error) {
	producer, err := rmq.NewProducer(r.config(""), append(more, rmq.WithTopics(r.topic(kind)))...)
	if err != nil {
		return nil, err
	}
	return producer, producer.Start()
}

// consumer starts a simple consumer, and receives once: a group is known to a queue from its first receive on.
func (r *run) consumer(kind string, filter *rmq.FilterExpression) (rmq.SimpleConsumer, error) {
	consumer, err := rmq.NewSimpleConsumer(r.config(r.group()), rmq.WithSimpleAwaitDuration(await),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{r.topic(kind): filter}))
	if err != nil {
		return nil, err
	}
	if err = consumer.Start(); err != nil {
		return nil, err
	}
	return consumer, receiveAndAck(consumer, func(*rmq.MessageView) {})
}

func (r *run) pushConsumer(kind, tag string, listener func(*rmq.MessageView) rmq.ConsumerResult) (rmq.PushConsumer, error) {
	consumer, err := rmq.NewPushConsumer(r.config(r.group()), rmq.WithPushAwaitDuration(await),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{r.topic(kind): rmq.NewFilterExpression(tag)}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listener}))
	if err != nil {
		return nil, err
	}
	if err = consumer.Start(); err != nil {
		return nil, err
	}
	time.Sleep(joining)
	return consumer, nil
}

// message builds a message whose properties contain the digest of its body and the id of this flow.
func (r *run) message(kind string, index int) *rmq.Message {
	text := fmt.Sprintf("%s %d %s ", r.flow, index, uuid.NewString())
	message := &rmq.Message{Topic: r.topic(kind), Body: []byte(strings.Repeat(text, 1+index%16))}
	message.AddProperty("sha", digest(message.Body))
	message.AddProperty("run", r.id)
	message.AddProperty("number", fmt.Sprint(index))
	return message
}

// sendAll calls send for each number below count. Numbers of one lane are sent in order, one after the other.
func (r *run) sendAll(lanes int, send func(index int) error) error {
	failures := make(chan error, lanes)
	for lane := range lanes {
		go func() {
			for index := lane; index < r.count; index += lanes {
				if err := send(index); err != nil {
					failures <- fmt.Errorf("message %d: %w", index, err)
					return
				}
			}
			failures <- nil
		}()
	}
	var all error
	for range lanes {
		all = errors.Join(all, <-failures)
	}
	return all
}

// receiveAll receives and acknowledges until the tally has every wanted message, or the time is over.
func (r *run) receiveAll(consumer rmq.SimpleConsumer, found *tally, count int, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	failures := make(chan error, count)
	for range count {
		go func() {
			var err error
			for err == nil && !found.isComplete() && time.Now().Before(deadline) {
				err = receiveAndAck(consumer, found.add)
			}
			failures <- err
		}()
	}
	var all error
	for range count {
		all = errors.Join(all, <-failures)
	}
	return all
}

// receive returns the next messages, and none if the poll ended without any.
func receive(consumer rmq.SimpleConsumer, hidden time.Duration) ([]*rmq.MessageView, error) {
	views, err := consumer.Receive(context.Background(), batch, hidden)
	if status, isStatus := rmq.AsErrRpcStatus(err); isStatus && status.Code == int32(v2.Code_MESSAGE_NOT_FOUND) {
		return nil, nil
	}
	return views, err
}

func receiveAndAck(consumer rmq.SimpleConsumer, handle func(*rmq.MessageView)) error {
	views, err := receive(consumer, invisible)
	for _, view := range views {
		handle(view)
		err = errors.Join(err, consumer.Ack(context.Background(), view))
	}
	return err
}

func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// tally counts what arrived of one flow, and what was wrong with it.
type tally struct {
	lock   sync.Mutex
	id     string
	wanted map[string]bool
	copies map[string]int
	wrong  []string
	// arrived counts the wanted messages of which a copy has arrived.
	arrived int
	isOpen  bool
	// check looks for further faults of a message of this flow, if it is set.
	check func(*rmq.MessageView)
}

func (r *run) tally() *tally {
	return &tally{id: r.id, wanted: map[string]bool{}, copies: map[string]int{}, isOpen: true}
}

// want adds a message that must arrive.
func (t *tally) want(message *rmq.Message) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.wanted[message.GetProperties()["sha"]] = true
}

// close ends the adding of wanted messages: from now on the tally can be complete.
func (t *tally) close() {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.isOpen = false
}

// isOwn returns whether a message is of this flow; an altered one is noted.
func (t *tally) isOwn(view *rmq.MessageView) bool {
	if view.GetProperties()["run"] != t.id {
		return false
	}
	if digest(view.GetBody()) != view.GetProperties()["sha"] {
		t.complain("the body of %s changed", view.GetMessageId())
	}
	return true
}

func (t *tally) add(view *rmq.MessageView) {
	if !t.isOwn(view) {
		return
	}
	if t.check != nil {
		t.check(view)
	}
	t.lock.Lock()
	defer t.lock.Unlock()
	key := view.GetProperties()["sha"]
	if t.copies[key]++; t.copies[key] == 1 && t.wanted[key] {
		t.arrived++
	}
}

func (t *tally) complain(format string, values ...any) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.wrong = append(t.wrong, fmt.Sprintf(format, values...))
}

func (t *tally) isComplete() bool {
	t.lock.Lock()
	defer t.lock.Unlock()
	return !t.isOpen && t.arrived == len(t.wanted)
}

// wait waits until every wanted message has arrived.
func (t *tally) wait(patience time.Duration) {
	t.close()
	for deadline := time.Now().Add(patience); !t.isComplete() && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
	}
}

// verdict is the line that a flow prints.
type verdict struct {
	Flow     string `json:"flow"`
	IsOk     bool   `json:"ok"`
	Expected int    `json:"expected"`
	Received int    `json:"received"`
	Copies   int    `json:"copies"`
	Note     string `json:"note"`
}

// judge returns the verdict: every wanted message arrived, no other one, and nothing was wrong.
func (t *tally) judge(note string) verdict {
	t.lock.Lock()
	defer t.lock.Unlock()
	result := verdict{Expected: len(t.wanted), Received: len(t.copies), Note: note}
	isOk := len(t.wrong) == 0 && len(t.copies) == len(t.wanted)
	for one, copies := range t.copies {
		isOk = isOk && t.wanted[one]
		result.Copies += copies
	}
	if len(t.wrong) > 0 {
		result.Note = fmt.Sprintf("%s; %d wrong, the first: %s", note, len(t.wrong), t.wrong[0])
	}
	result.IsOk = isOk
	return result
}

func (v verdict) print() {
	line, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}
