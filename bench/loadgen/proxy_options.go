package main

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	proxyCommand = "proxy"

	modeSend    = "send"
	modeReceive = "receive"
	modeIdle    = "idle"

	pathSend      = "/apache.rocketmq.v2.MessagingService/SendMessage"
	pathReceive   = "/apache.rocketmq.v2.MessagingService/ReceiveMessage"
	pathAck       = "/apache.rocketmq.v2.MessagingService/AckMessage"
	pathTelemetry = "/apache.rocketmq.v2.MessagingService/Telemetry"

	invisibleSeconds = 300
	pollSeconds      = 5
	batchMax         = 32
	messagesMax      = 100_000_000
	idleClientsMax   = 60_000
)

// ProxyOptions say what to ask a gRPC proxy for, and for how long.
type ProxyOptions struct {
	Mode        string
	Address     string
	Topic       string
	Group       string
	BrokerName  string
	Connections int
	Outstanding int
	BodyBytes   int
	Batch       int
	Messages    uint64
	WarmUp      time.Duration
	Duration    time.Duration
	PIDs        []int
}

// ParseProxyOptions reads the command line of `loadgen proxy`.
func ParseProxyOptions(arguments []string) (ProxyOptions, error) {
	var o ProxyOptions
	var pids string
	flags := flag.NewFlagSet("loadgen proxy", flag.ContinueOnError)
	flags.StringVar(&o.Mode, "mode", modeSend, "send; receive, with an acknowledgement of each message; or idle streams")
	flags.StringVar(&o.Address, "address", "127.0.0.1:8081", "the gRPC port of the proxy")
	flags.StringVar(&o.Topic, "topic", "bench", "the topic, which exists")
	flags.StringVar(&o.Group, "group", "bench", "the consumer group of receives")
	flags.StringVar(&o.BrokerName, "broker-name", "broker-a", "the broker that receives ask")
	flags.IntVar(&o.Connections, "connections", 1, "the number of clients, each with one connection")
	flags.IntVar(&o.Outstanding, "outstanding", 1, "the calls that all clients together have open at any time")
	flags.IntVar(&o.BodyBytes, "body-bytes", 1024, "the size of a message's body")
	flags.IntVar(&o.Batch, "batch", batchMax, "how many messages one receive may return")
	flags.Uint64Var(&o.Messages, "messages", 0, "end after so many messages; 0 for no limit")
	flags.DurationVar(&o.WarmUp, "warm-up", time.Second, "the time before the measurement")
	flags.DurationVar(&o.Duration, "duration", 5*time.Second, "the time of the measurement")
	flags.StringVar(&pids, "pids", "", "the processes whose CPU time is reported, separated by commas")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	for _, text := range strings.Split(pids, ",") {
		if text == "" {
			continue
		}
		pid, err := strconv.Atoi(text)
		if err != nil {
			return o, fmt.Errorf("-pids: %q is not a number", text)
		}
		o.PIDs = append(o.PIDs, pid)
	}
	return o, o.check()
}

func (o ProxyOptions) check() error {
	switch {
	case o.Mode != modeSend && o.Mode != modeReceive && o.Mode != modeIdle:
		return fmt.Errorf("-mode: %q, expected send, receive or idle", o.Mode)
	case o.Connections < 1 || o.Connections > idleClientsMax:
		return fmt.Errorf("-connections: %d, expected 1 to %d", o.Connections, idleClientsMax)
	case o.Mode != modeIdle && (o.Outstanding < o.Connections || o.Outstanding > outstandingMax):
		return fmt.Errorf("-outstanding: %d, expected %d to %d", o.Outstanding, o.Connections, outstandingMax)
	case o.BodyBytes < 1 || o.BodyBytes > bodyBytesMax:
		return fmt.Errorf("-body-bytes: %d, expected 1 to %d", o.BodyBytes, bodyBytesMax)
	case o.Batch < 1 || o.Batch > batchMax:
		return fmt.Errorf("-batch: %d, expected 1 to %d", o.Batch, batchMax)
	case o.Messages > messagesMax:
		return fmt.Errorf("-messages: %d, expected at most %d", o.Messages, messagesMax)
	case o.WarmUp > warmUpMax || o.Duration > durationMax || o.Duration <= 0:
		return errors.New("-warm-up or -duration: the time is too long, or not positive")
	}
	return nil
}
