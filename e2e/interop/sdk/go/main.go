// Command go drives a gRPC proxy with RocketMQ's Go SDK, and judges what arrives: every message once at least, and none
// changed.
//
//	go ENDPOINTS SUFFIX FLOW:MESSAGES ...
//
// Topics are named sdk-<kind><suffix> and groups sdk-<flow><suffix>; they exist before. It prints one JSON line for each
// flow. The exit code is 0 if every flow is ok.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/google/uuid"
)

var flows = map[string]func(*run) (verdict, error){
	"normal": normal, "tag": filtered, "sql": filtered, "push": push, "fifo": fifo, "delay": delay, "recall": recall,
	"priority": priority, "transaction": transaction, "invisible": changeInvisible, "dead-letters": deadLetters,
	"fifo-dead-letters": deadLetters,
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: go ENDPOINTS SUFFIX FLOW:MESSAGES ...")
		os.Exit(2)
	}
	rmq.EnableSsl = false
	isOk := true
	for _, argument := range os.Args[3:] {
		name, text, _ := strings.Cut(argument, ":")
		count, err := strconv.Atoi(text)
		if flows[name] == nil || err != nil || count < 1 {
			fmt.Fprintf(os.Stderr, "%q: expected the name of a flow, a colon and a number of messages\n", argument)
			os.Exit(2)
		}
		one := &run{endpoints: os.Args[1], suffix: os.Args[2], flow: name, id: uuid.NewString(), count: count}
		result, err := flows[name](one)
		if err != nil {
			result = verdict{Note: err.Error()}
		}
		result.Flow = name
		result.print()
		isOk = isOk && result.IsOk
	}
	if !isOk {
		os.Exit(1)
	}
}
