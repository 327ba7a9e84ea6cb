package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

const (
	messageGroups = 16
	// settled is the time without a delivery after which messages that always fail are given up: longer than a long poll
	// of 20 s, which brokers of RocketMQ 5.3.3 do not end for a failed message. The proxy gives a message up when it
	// receives it again.
	settled = 30 * time.Second
	// deliveries is how often a message is delivered before it goes to the dead letters; the groups allow two retries.
	deliveries = 3
)

// exchange starts a push consumer, sends all messages, and waits for the wanted ones and until isDone returns true.
// A message of another flow is acknowledged; listener gets the others.
func (r *run) exchange(
	kind, tag string, found *tally, listener func(*rmq.MessageView) rmq.ConsumerResult, isDone func() bool,
) error {
	consumer, err := r.pushConsumer(kind, tag, func(view *rmq.MessageView) rmq.ConsumerResult {
		if !found.isOwn(view) {
			return rmq.SUCCESS
		}
		return listener(view)
	})
	if err != nil {
		return err
	}
	defer consumer.GracefulStop()
	producer, err := r.producer(kind)
	if err != nil {
		return err
	}
	defer producer.GracefulStop()
	err = r.sendAll(messageGroups, func(index int) error {
		message := r.message(kind, index)
		message.SetTag(r.flow)
		if kind == "fifo" {
			message.SetMessageGroup(fmt.Sprintf("group-%d", index%messageGroups))
		}
		found.want(message)
		_, err := producer.Send(context.Background(), message)
		return err
	})
	found.wait(r.patience())
	for err == nil && !isDone() {
		time.Sleep(time.Second)
	}
	return err
}

// push fails an eighth of the messages once; those must be delivered again.
func push(r *run) (verdict, error) {
	found, failed, lock := r.tally(), map[string]bool{}, sync.Mutex{}
	err := r.exchange("normal", "push", found, func(view *rmq.MessageView) rmq.ConsumerResult {
		key := view.GetProperties()["sha"]
		lock.Lock()
		defer lock.Unlock()
		if !failed[key] && key[0] < '2' {
			failed[key] = true
			return rmq.FAILURE
		}
		found.add(view)
		return rmq.SUCCESS
	}, func() bool { return true })
	return found.judge(fmt.Sprintf("%d failed once", len(failed))), err
}

// fifo checks that the messages of each message group arrive in the order in which they were sent.
func fifo(r *run) (verdict, error) {
	found, last, lock := r.tally(), map[string]int{}, sync.Mutex{}
	err := r.exchange("fifo", "fifo", found, func(view *rmq.MessageView) rmq.ConsumerResult {
		number, _ := strconv.Atoi(view.GetProperties()["number"])
		lock.Lock()
		defer lock.Unlock()
		group := *view.GetMessageGroup()
		if number < last[group] {
			found.complain("%d after %d in %s", number, last[group], group)
		}
		last[group] = number
		found.add(view)
		return rmq.SUCCESS
	}, func() bool { return true })
	return found.judge("in order"), err
}

// deadLetters fails every message until it is given up; the harness reads the dead letters afterwards.
func deadLetters(r *run) (verdict, error) {
	kind := map[string]string{"dead-letters": "normal", "fifo-dead-letters": "fifo"}[r.flow]
	found, attempts, lock, newest := r.tally(), map[string]int{}, sync.Mutex{}, time.Now()
	err := r.exchange(kind, r.flow, found, func(view *rmq.MessageView) rmq.ConsumerResult {
		key := view.GetProperties()["sha"]
		lock.Lock()
		defer lock.Unlock()
		attempts[key]++
		newest = time.Now()
		if attempts[key] == deliveries {
			found.add(view)
		} else if attempts[key] > deliveries {
			found.complain("delivery %d", attempts[key])
		}
		return rmq.FAILURE
	}, func() bool {
		lock.Lock()
		defer lock.Unlock()
		return time.Since(newest) > settled
	})
	return found.judge(fmt.Sprintf("%d deliveries each", deliveries)), err
}
