package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const drainTime = 10 * time.Second

// ProxyReport is the one JSON object that `loadgen proxy` prints.
type ProxyReport struct {
	Mode              string            `json:"mode"`
	Connections       int               `json:"connections"`
	Outstanding       int               `json:"outstanding"`
	BodyBytes         int               `json:"body_bytes"`
	Messages          uint64            `json:"messages"`
	Seconds           float64           `json:"seconds"`
	MessagesPerSecond float64           `json:"messages_per_second"`
	LatencyUS         Latency           `json:"latency_us"`
	Receives          uint64            `json:"receives"`
	EmptyReceives     uint64            `json:"empty_receives"`
	Errors            uint64            `json:"errors"`
	RefusedByCode     map[string]uint64 `json:"refused_by_code"`
	FirstRefusal      string            `json:"first_refusal"`
	OwnCPUSeconds     float64           `json:"own_cpu_seconds"`
	// By process, in the order of -pids.
	CPUSeconds          []float64 `json:"cpu_seconds"`
	ResidentBytesBefore []int64   `json:"resident_bytes_before"`
	ResidentBytes       []int64   `json:"resident_bytes"`
}

func mainProxy(arguments []string) {
	options, err := ParseProxyOptions(arguments)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadgen proxy:", err)
		os.Exit(exitUsage)
	}
	report, err := runProxy(options)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(report)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadgen proxy:", err)
		os.Exit(exitFailed)
	}
}

// proxyRun is the state that the clients of a run share.
type proxyRun struct {
	isCounting atomic.Bool
	isOver     atomic.Bool
	counted    atomic.Uint64
}

func runProxy(o ProxyOptions) (ProxyReport, error) {
	run := &proxyRun{}
	window := &Window{done: run.isOver.Load, count: func() bool {
		if !run.isCounting.Load() {
			return false
		}
		return o.Messages == 0 || run.counted.Add(1) <= o.Messages
	}}
	resident, err := readResident(o.PIDs)
	if err != nil {
		return ProxyReport{}, err
	}
	clients := make([]*ProxyClient, o.Connections)
	for i := range clients {
		slots := o.Outstanding / o.Connections
		if i < o.Outstanding%o.Connections {
			slots++
		}
		client, err := NewProxyClient(o, window, i, slots)
		if err != nil {
			return ProxyReport{}, err
		}
		clients[i] = client
	}
	failures := make(chan error, len(clients))
	var running sync.WaitGroup
	for _, client := range clients {
		running.Add(1)
		go func() {
			defer running.Done()
			if err := client.Run(); err != nil && !run.isOver.Load() {
				failures <- err
			}
		}()
	}
	report, err := measureProxy(o, run, failures)
	report.ResidentBytesBefore = resident
	run.isOver.Store(true)
	for _, client := range clients { // those that wait in vain, such as idle ones and long polls
		_ = client.peer.socket.SetReadDeadline(time.Now().Add(drainTimeOf(o)))
	}
	running.Wait()
	if err != nil {
		return report, err
	}
	return collect(report, o, clients), nil
}

func drainTimeOf(o ProxyOptions) time.Duration {
	if o.Mode == modeSend {
		return drainTime
	}
	return 0
}

// measureProxy waits for the warm-up and the measurement, and returns times.
func measureProxy(o ProxyOptions, run *proxyRun, failures <-chan error) (ProxyReport, error) {
	report := ProxyReport{Mode: o.Mode, Connections: o.Connections, Outstanding: o.Outstanding, BodyBytes: o.BodyBytes}
	if err := waitFor(o.WarmUp, failures, func() bool { return false }); err != nil {
		return report, err
	}
	before, err := readCPU(o.PIDs)
	if err != nil {
		return report, err
	}
	own, began := ownCPU(), time.Now()
	run.isCounting.Store(true)
	isEnough := func() bool { return o.Messages > 0 && run.counted.Load() >= o.Messages }
	if err := waitFor(o.Duration, failures, isEnough); err != nil {
		return report, err
	}
	run.isCounting.Store(false)
	report.Seconds = time.Since(began).Seconds()
	report.OwnCPUSeconds = (ownCPU() - own).Seconds()
	after, err := readCPU(o.PIDs)
	if err != nil {
		return report, err
	}
	if report.ResidentBytes, err = readResident(o.PIDs); err != nil {
		return report, err
	}
	for i := range after {
		report.CPUSeconds = append(report.CPUSeconds, (after[i] - before[i]).Seconds())
	}
	return report, nil
}

func waitFor(length time.Duration, failures <-chan error, isEnough func() bool) error {
	end := time.After(length)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-failures:
			return err
		case <-end:
			return nil
		case <-tick.C:
			if isEnough() {
				return nil
			}
		}
	}
}

func readCPU(pids []int) ([]time.Duration, error) {
	var found []time.Duration
	for _, pid := range pids {
		used, err := ReadCPU(pid)
		if err != nil {
			return nil, err
		}
		// Threads of a pool end meanwhile, so that the sum over the threads that run may shrink.
		found = append(found, max(used.Precise, used.User+used.System))
	}
	return found, nil
}

// readResident is the resident memory of each process.
func readResident(pids []int) ([]int64, error) {
	var found []int64
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			return nil, err
		}
		var total, pages int64
		if _, err := fmt.Sscan(string(text), &total, &pages); err != nil {
			return nil, err
		}
		found = append(found, pages*int64(os.Getpagesize()))
	}
	return found, nil
}

func collect(report ProxyReport, o ProxyOptions, clients []*ProxyClient) ProxyReport {
	report.RefusedByCode = map[string]uint64{}
	latency := &Histogram{}
	for _, client := range clients {
		report.Messages += client.messages
		report.Receives += client.receives
		report.EmptyReceives += client.empty
		latency.Add(client.latency)
		for code, count := range client.refused {
			report.RefusedByCode[strconv.FormatUint(code, 10)] += count
			report.Errors += count
		}
		if report.FirstRefusal == "" {
			report.FirstRefusal = client.refusal
		}
		if o.Mode == modeIdle && !client.isReady {
			report.Errors++
			report.FirstRefusal = "a client without settings"
		}
	}
	report.MessagesPerSecond = float64(report.Messages) / report.Seconds
	report.LatencyUS = Latency{
		Mean: latency.Mean() / 1000,
		P50:  float64(latency.Percentile(0.50)) / 1000,
		P99:  float64(latency.Percentile(0.99)) / 1000,
		P999: float64(latency.Percentile(0.999)) / 1000,
		Max:  float64(latency.most) / 1000,
	}
	return report
}
