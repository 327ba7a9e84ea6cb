package main

import (
	"errors"
	"flag"
	"fmt"
	"time"
)

// Options say what to send and for how long. Every number has an upper bound, so that a typing error does not become
// an endless load.
type Options struct {
	Address        string
	Connections    int
	Outstanding    int
	FramesPerWrite int
	BodyBytes      int
	Code           int
	Header         string
	Order          string
	Keys           int
	BatchMessages  int
	Group          string
	Topic          string
	Topics         int
	BrokerName     string
	Tags           string
	Queues         int
	WarmUp         time.Duration
	Duration       time.Duration
	ServerPID      int
	Echo           bool
	AccessKey      string
	SecretKey      string
}

const (
	connectionsMax = 16_384
	outstandingMax = 4096
	bodyBytesMax   = 4 << 20
	// A slot always sends to the same queue, so queues beyond the number of slots get no message.
	queuesMax       = 1024
	topicsMax       = 1_000_000
	warmUpMax       = 30 * time.Second
	durationMax     = 120 * time.Second
	windowBytesMax  = 64 << 20
	headerJSON      = "json"
	headerRocketMQ  = "rocketmq"
	topicLengthMax  = 127
	opaqueSlotsMax  = opaqueEnd - opaqueStart
	opaqueStart     = 1_000_000
	opaqueEnd       = 10_000_000
	frameBytesExtra = 4096

	codeSendV1    = 10
	codeSendV2    = 310
	codeSendBatch = 320
	orderJava     = "java"
	orderGo       = "go"
	keysMax       = 8
	// The broker's default limit of messages in a batch.
	batchMessagesMax = 1024
)

// ParseOptions reads the command line; an error names the flag or the value at fault.
func ParseOptions(arguments []string) (Options, error) {
	var o Options
	set := flag.NewFlagSet("loadgen", flag.ContinueOnError)
	set.StringVar(&o.Address, "address", "127.0.0.1:10911", "where the server listens")
	set.IntVar(&o.Connections, "connections", 1, "how many connections")
	set.IntVar(&o.Outstanding, "outstanding", 64, "unanswered frames per connection")
	set.IntVar(&o.FramesPerWrite, "frames-per-write", 1, "frames in one write; they are sent again when all are answered")
	set.IntVar(&o.BodyBytes, "body-bytes", 1024, "message body size")
	set.IntVar(&o.Code, "code", codeSendV2, "310: fields with names of one letter; 10: with long names; 320: a batch")
	set.StringVar(&o.Header, "header", headerJSON, "json or rocketmq (the binary one)")
	set.StringVar(&o.Order, "order", orderJava, "order of the header's parts: java, or go (sorted fields after the rest)")
	set.IntVar(&o.Keys, "keys", 0, "keys of every message, which the broker indexes; they change with every message")
	set.IntVar(&o.BatchMessages, "batch-messages", 1, "messages in one request of code 320, each of body-bytes")
	set.StringVar(&o.Group, "group", "bench_producer", "producer group")
	set.StringVar(&o.Topic, "topic", "GantryBench", "topic; the broker creates it from TBW102")
	set.IntVar(&o.Topics, "topics", 0, "topics, used in turn, with six digits after the name; 0 for the one of that name")
	set.StringVar(&o.BrokerName, "broker-name", "broker-a", "broker name in the header, as Java clients send it")
	set.StringVar(&o.Tags, "tags", "", "tag of every message; none if empty")
	set.IntVar(&o.Queues, "queues", 4, "queues of the topic, used round robin")
	set.DurationVar(&o.WarmUp, "warm-up", 500*time.Millisecond, "load before the measurement")
	set.DurationVar(&o.Duration, "duration", 2*time.Second, "length of the measurement")
	set.IntVar(&o.ServerPID, "server-pid", 0, "process whose CPU time is measured; 0 for none")
	set.BoolVar(&o.Echo, "echo", false, "the server is an echo server: expect every frame back unchanged")
	set.StringVar(&o.AccessKey, "access-key", "", "sign every request as this account; nothing is signed if empty")
	set.StringVar(&o.SecretKey, "secret-key", "", "the secret of that account, made up for a benchmark")
	if err := set.Parse(arguments); err != nil {
		return o, err
	}
	if set.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return o, o.validate()
}

func (o Options) validate() error {
	bounds := []struct {
		flag                string
		value, lowest, most int
	}{
		{"connections", o.Connections, 1, connectionsMax},
		{"outstanding", o.Outstanding, 1, outstandingMax},
		{"frames-per-write", o.FramesPerWrite, 1, o.Outstanding},
		{"body-bytes", o.BodyBytes, 1, bodyBytesMax},
		{"queues", o.Queues, 1, queuesMax},
		{"topics", o.Topics, 0, topicsMax},
		{"warm-up (ms)", int(o.WarmUp.Milliseconds()), 0, int(warmUpMax.Milliseconds())},
		{"duration (ms)", int(o.Duration.Milliseconds()), 1, int(durationMax.Milliseconds())},
		{"server-pid", o.ServerPID, 0, 1 << 30},
		{"topic (characters)", len(o.topicName()), 1, topicLengthMax},
		{"group (characters)", len(o.Group), 1, topicLengthMax},
		{"broker-name (characters)", len(o.BrokerName), 1, topicLengthMax},
		{"tags (characters)", len(o.Tags), 0, topicLengthMax},
		{"connections times outstanding", o.Connections * o.Outstanding, 1, opaqueSlotsMax},
		{"keys", o.Keys, 0, keysMax},
		{"batch-messages", o.BatchMessages, 1, batchMessagesMax},
		{"bytes of a batch", o.BatchMessages * (o.BodyBytes + batchEntryBytesExtra), 1, bodyBytesMax + batchEntryBytesExtra},
		{
			"bytes in flight (connections times outstanding times frame)",
			o.Connections * o.Outstanding * (o.BatchMessages*(o.BodyBytes+batchEntryBytesExtra) + 512), 1, windowBytesMax,
		},
	}
	for _, bound := range bounds {
		if bound.value < bound.lowest || bound.value > bound.most {
			return fmt.Errorf("%s must be from %d to %d, not %d", bound.flag, bound.lowest, bound.most, bound.value)
		}
	}
	if o.Outstanding%o.FramesPerWrite != 0 {
		return errors.New("outstanding must be a multiple of frames-per-write")
	}
	if o.Header != headerJSON && o.Header != headerRocketMQ {
		return fmt.Errorf("header must be %s or %s, not %q", headerJSON, headerRocketMQ, o.Header)
	}
	if o.Code != codeSendV1 && o.Code != codeSendV2 && o.Code != codeSendBatch {
		return fmt.Errorf("code must be %d, %d or %d, not %d", codeSendV1, codeSendV2, codeSendBatch, o.Code)
	}
	if o.BatchMessages > 1 && o.Code != codeSendBatch {
		return fmt.Errorf("only requests of code %d have several messages", codeSendBatch)
	}
	if o.Topics > 0 && o.AccessKey != "" {
		return errors.New("only requests to one topic are signed")
	}
	if o.Order != orderJava && o.Order != orderGo {
		return fmt.Errorf("order must be %s or %s, not %q", orderJava, orderGo, o.Order)
	}
	if (o.AccessKey == "") != (o.SecretKey == "") {
		return errors.New("access-key and secret-key must be given together")
	}
	if o.AccessKey != "" && o.Header != headerJSON {
		return errors.New("only requests with header=json are signed")
	}
	for _, name := range []string{o.Topic, o.Group, o.BrokerName, o.Tags, o.AccessKey} {
		if !isPlainName(name) {
			return fmt.Errorf("names may hold letters, digits, '_' and '-', not %q", name)
		}
	}
	return nil
}

// topicName is the topic of a new frame: with -topics the first of them, and Stamp writes the number of another.
func (o Options) topicName() string {
	if o.Topics == 0 {
		return o.Topic
	}
	return o.Topic + topicPlaceholder
}

// isPlainName keeps names free of anything that JSON would have to escape.
func isPlainName(name string) bool {
	for _, letter := range []byte(name) {
		isLetter := letter >= 'a' && letter <= 'z' || letter >= 'A' && letter <= 'Z'
		isDigit := letter >= '0' && letter <= '9'
		if !isLetter && !isDigit && letter != '_' && letter != '-' {
			return false
		}
	}
	return true
}
