package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

const (
	changedInvisible = 3 * time.Second
	// priorityMax is the highest priority: topics have four queues, and 0 is no priority for the SDK for Node.js.
	priorityMax = 3
)

// scene is a started simple consumer and a started producer of one topic.
type scene struct {
	*run
	kind     string
	consumer rmq.SimpleConsumer
	producer rmq.Producer
	found    *tally
	// receivers is the number of receives at the same time.
	receivers int
}

func (r *run) open(kind string, filter *rmq.FilterExpression, more ...rmq.ProducerOption) (*scene, error) {
	consumer, err := r.consumer(kind, filter)
	if err != nil {
		return nil, err
	}
	producer, err := r.producer(kind, more...)
	if err != nil {
		consumer.GracefulStop()
		return nil, err
	}
	return &scene{r, kind, consumer, producer, r.tally(), receivers}, nil
}

func (s *scene) stop() {
	s.consumer.GracefulStop()
	s.producer.GracefulStop()
}

// exchange sends the messages that build returns, and receives those that are wanted.
func (s *scene) exchange(send func(message *rmq.Message, index int) error) error {
	err := s.sendAll(senders, func(index int) error { return send(s.message(s.kind, index), index) })
	if err != nil {
		return err
	}
	s.found.close()
	return s.receiveAll(s.consumer, s.found, s.receivers, s.patience())
}

func (s *scene) send(message *rmq.Message) error {
	_, err := s.producer.Send(context.Background(), message)
	return err
}

// receiveMore receives for some time after the last wanted message, so that an unwanted one is noticed.
func (s *scene) receiveMore(longer time.Duration) error {
	for deadline := time.Now().Add(longer); time.Now().Before(deadline); {
		if err := receiveAndAck(s.consumer, s.found.add); err != nil {
			return err
		}
	}
	return nil
}

func normal(r *run) (verdict, error) {
	s, err := r.open("normal", rmq.SUB_ALL)
	if err != nil {
		return verdict{}, err
	}
	defer s.stop()
	s.found.check = func(view *rmq.MessageView) {
		if key := "key-" + view.GetProperties()["number"]; len(view.GetKeys()) != 1 || view.GetKeys()[0] != key {
			s.found.complain("the keys of %s are %v", view.GetMessageId(), view.GetKeys())
		}
	}
	err = s.exchange(func(message *rmq.Message, index int) error {
		message.SetTag("a")
		message.SetKeys(fmt.Sprintf("key-%d", index))
		s.found.want(message)
		return s.send(message)
	})
	return s.found.judge(""), err
}

// filtered subscribes to a part of the messages, and waits whether others arrive, too.
func filtered(r *run) (verdict, error) {
	filter := rmq.NewFilterExpression("red")
	if r.flow == "sql" {
		filter = rmq.NewFilterExpressionWithType("price > 5", rmq.SQL92)
	}
	s, err := r.open("normal", filter)
	if err != nil {
		return verdict{}, err
	}
	defer s.stop()
	err = s.exchange(func(message *rmq.Message, index int) error {
		message.SetTag([]string{"red", "green", "blue"}[index%3])
		message.AddProperty("price", strconv.Itoa(index%10))
		if r.flow == "tag" && index%3 == 0 || r.flow == "sql" && index%10 > 5 {
			s.found.want(message)
		}
		return s.send(message)
	})
	if err == nil {
		err = s.receiveMore(await)
	}
	return s.found.judge(""), err
}

func delay(r *run) (verdict, error) {
	s, err := r.open("delay", rmq.SUB_ALL)
	if err != nil {
		return verdict{}, err
	}
	defer s.stop()
	s.found.check = func(view *rmq.MessageView) {
		if due, _ := strconv.ParseInt(view.GetProperties()["due"], 10, 64); time.Now().UnixMilli() < due {
			s.found.complain("early by %d ms", due-time.Now().UnixMilli())
		}
	}
	err = s.exchange(func(message *rmq.Message, index int) error {
		at := time.Now().Add(time.Duration(3+index%3) * time.Second)
		message.SetDelayTimestamp(at)
		message.AddProperty("due", strconv.FormatInt(at.UnixMilli(), 10))
		s.found.want(message)
		return s.send(message)
	})
	return s.found.judge("none early"), err
}

// recall takes every other message back before it is due.
func recall(r *run) (verdict, error) {
	s, err := r.open("delay", rmq.SUB_ALL)
	if err != nil {
		return verdict{}, err
	}
	defer s.stop()
	var recalled atomic.Int64
	err = s.exchange(func(message *rmq.Message, index int) error {
		message.SetDelayTimestamp(time.Now().Add(recallable))
		if index%2 == 0 {
			s.found.want(message)
			return s.send(message)
		}
		receipts, err := s.producer.Send(context.Background(), message)
		if err == nil {
			_, err = s.producer.Recall(context.Background(), message.Topic, receipts[0].RecallHandle)
			recalled.Add(1)
		}
		return err
	})
	if err == nil {
		err = s.receiveMore(recallable)
	}
	return s.found.judge(fmt.Sprintf("%d recalled", recalled.Load())), err
}

// priority sends all messages, then checks that one receiver gets those of higher priority first.
func priority(r *run) (verdict, error) {
	s, err := r.open("priority", rmq.SUB_ALL)
	if err != nil {
		return verdict{}, err
	}
	defer s.stop()
	s.receivers = 1
	lowest := priorityMax
	s.found.check = func(view *rmq.MessageView) {
		number, _ := strconv.Atoi(view.GetProperties()["number"])
		found := 1 + number%priorityMax
		if found > lowest {
			s.found.complain("priority %d after %d", found, lowest)
		}
		lowest = min(lowest, found)
	}
	err = s.exchange(func(message *rmq.Message, index int) error {
		if err := message.SetPriority(int32(1 + index%priorityMax)); err != nil {
			return err
		}
		s.found.want(message)
		return s.send(message)
	})
	return s.found.judge("highest first"), err
}

// transaction commits every other message; the outcome of a fifth of them is left to the checker.
func transaction(r *run) (verdict, error) {
	var checks atomic.Int64
	checker := &rmq.TransactionChecker{Check: func(view *rmq.MessageView) rmq.TransactionResolution {
		checks.Add(1)
		if number, _ := strconv.Atoi(view.GetProperties()["number"]); number%2 == 0 {
			return rmq.COMMIT
		}
		return rmq.ROLLBACK
	}}
	s, err := r.open("transaction", rmq.SUB_ALL, rmq.WithTransactionChecker(checker))
	if err != nil {
		return verdict{}, err
	}
	defer s.stop()
	err = s.exchange(func(message *rmq.Message, index int) error {
		opened := s.producer.BeginTransaction()
		if index%2 == 0 {
			s.found.want(message)
		}
		_, err := s.producer.SendWithTransaction(context.Background(), message, opened)
		switch {
		case err != nil || index%10 >= 8:
			return err
		case index%2 == 0:
			return opened.Commit()
		default:
			return opened.RollBack()
		}
	})
	if r.count > 8 && checks.Load() == 0 {
		s.found.complain("no transaction was checked")
	}
	return s.found.judge(fmt.Sprintf("%d checks", checks.Load())), err
}

// changeInvisible changes the invisible time of every message, which brings it back with one more attempt.
func changeInvisible(r *run) (verdict, error) {
	s, err := r.open("normal", rmq.NewFilterExpression("invisible"))
	if err != nil {
		return verdict{}, err
	}
	defer s.stop()
	err = s.sendAll(senders, func(index int) error {
		message := s.message("normal", index)
		message.SetTag("invisible")
		s.found.want(message)
		return s.send(message)
	})
	if err != nil {
		return verdict{}, err
	}
	s.found.close()
	changed := map[string]time.Time{}
	for deadline := time.Now().Add(s.patience()); !s.found.isComplete() && time.Now().Before(deadline); {
		views, err := receive(s.consumer, invisible)
		if err != nil {
			return verdict{}, err
		}
		for _, view := range views {
			if err := s.settle(changed, view); err != nil {
				return verdict{}, err
			}
		}
	}
	return s.found.judge("all came back"), nil
}

// settle changes the invisible time at the first delivery, and acknowledges the second one.
func (s *scene) settle(changed map[string]time.Time, view *rmq.MessageView) error {
	key := view.GetProperties()["sha"]
	before, isChanged := changed[key]
	if !isChanged && s.found.isOwn(view) {
		changed[key] = time.Now()
		return s.consumer.ChangeInvisibleDuration(view, changedInvisible)
	}
	if isChanged && view.GetDeliveryAttempt() != 2 {
		s.found.complain("attempt %d, expected 2", view.GetDeliveryAttempt())
	}
	if isChanged && time.Since(before) < changedInvisible/2 {
		s.found.complain("back after %s", time.Since(before))
	}
	s.found.add(view)
	return s.consumer.Ack(context.Background(), view)
}
