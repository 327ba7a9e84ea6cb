package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// CPUTime is what a process has used so far. User and System come from /proc/PID/stat in steps of 10 ms; Precise is
// the sum over its threads of the scheduler's nanosecond count, and is zero where the kernel does not keep one.
// If a thread ends between two readings, its time is missing in Precise, but User and System still include it.
type CPUTime struct {
	User    time.Duration
	System  time.Duration
	Precise time.Duration
}

// clockTick is the unit of /proc/PID/stat, which Linux fixes at 1/100 s for user space.
const clockTick = 10 * time.Millisecond

// ReadCPU reads the CPU time of a process and of all its threads.
func ReadCPU(pid int) (CPUTime, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return CPUTime{}, fmt.Errorf("the server process %d is gone: %w", pid, err)
	}
	used, err := parseStat(text)
	if err != nil {
		return CPUTime{}, err
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return CPUTime{}, err
	}
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			continue // the thread ended between the listing and the reading
		}
		nanoseconds, err := strconv.ParseInt(strings.Fields(string(text) + " 0")[0], 10, 64)
		if err != nil {
			return CPUTime{}, fmt.Errorf("%s: %w", thread, err)
		}
		used.Precise += time.Duration(nanoseconds)
	}
	return used, nil
}

// parseStat takes fields 14 and 15; the process name before them may hold spaces and brackets.
func parseStat(text []byte) (CPUTime, error) {
	nameEnd := bytes.LastIndexByte(text, ')')
	fields := strings.Fields(string(text[nameEnd+1:]))
	if nameEnd < 0 || len(fields) < 13 {
		return CPUTime{}, fmt.Errorf("cannot read process statistics from %q", text)
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return CPUTime{}, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	if err != nil {
		return CPUTime{}, err
	}
	return CPUTime{User: time.Duration(user) * clockTick, System: time.Duration(system) * clockTick}, nil
}

// ownCPU is the CPU time of this process.
func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
