// Loadgen sends RocketMQ send requests to a server and reports rate, latency and CPU time as JSON.
//
// By default the requests are those of Java's client; options give them the form of other clients. Programs in bench/
// start it, such as that of `make bench-send`. It checks every answer: the correlation number must be that of a request
// still open on that connection, and the code must be 0. With -echo the answer must have the code and the length of the
// request. A batch counts as so many messages; its latency is that of the request. `loadgen proxy` sends to a gRPC proxy.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == proxyCommand {
		mainProxy(os.Args[2:])
		return
	}
	options, err := ParseOptions(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		os.Exit(exitUsage)
	}
	report, err := run(options)
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		os.Exit(exitFailed)
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		os.Exit(exitFailed)
	}
}

func run(o Options) (Report, error) {
	runtime.LockOSThread()
	debug.SetGCPercent(-1) // nothing is allocated per message, and a collection would show up as latency
	engine, err := NewEngine(o)
	if err != nil {
		return Report{}, err
	}
	defer engine.Close()
	if o.WarmUp > 0 {
		if _, err := engine.RunFor(o.WarmUp); err != nil {
			return Report{}, fmt.Errorf("warm-up: %w", err)
		}
	}
	before, err := readUsage(o.ServerPID)
	if err != nil {
		return Report{}, err
	}
	length, err := engine.RunFor(o.Duration)
	if err != nil {
		return Report{}, err
	}
	after, err := readUsage(o.ServerPID)
	if err != nil {
		return Report{}, err
	}
	report := NewReport(o, engine.counts, &engine.latency, length, before, after)
	if err := engine.Drain(); err != nil {
		return Report{}, fmt.Errorf("after the measurement: %w", err)
	}
	return report, nil
}
