package main

import (
	"math/rand"
	"os"
	"sort"
	"testing"
	"time"
)

// A percentile is never below the true one and at most 0.8 % above it.
func TestPercentilesAreWithinABucket(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	var histogram Histogram
	var values []uint64
	for i := 0; i < 50_000; i++ {
		value := uint64(random.ExpFloat64() * 300_000)
		values = append(values, value)
		histogram.Record(int64(value))
	}
	sort.Slice(values, func(i, j int) bool { return values[i] < values[j] })
	for _, share := range []float64{0.5, 0.99, 0.999, 1} {
		exact := values[int(share*float64(len(values)))-1]
		reported := histogram.Percentile(share)
		if reported < exact || float64(reported) > float64(exact)*1.008+1 {
			t.Errorf("share %v: reported %d, exact %d", share, reported, exact)
		}
	}
	if histogram.Percentile(1) != values[len(values)-1] {
		t.Errorf("the largest is %d, reported %d", values[len(values)-1], histogram.Percentile(1))
	}
}

// Every value lies inside the bucket that counts it.
func TestBucketsTile(t *testing.T) {
	for _, value := range []uint64{0, 1, 127, 128, 129, 255, 256, 257, 511, 512, 1 << 20, 1<<20 + 1, 1<<40 - 1, 1<<62 + 5} {
		bucket := bucketOf(value)
		if value >= bucketEnd(bucket) || (bucket > 0 && value < bucketEnd(bucket-1)) {
			t.Errorf("%d is not in bucket %d [%d, %d)", value, bucket, bucketEnd(bucket-1), bucketEnd(bucket))
		}
	}
}

// The process name may hold brackets and spaces; the times are found after it.
func TestStatIsReadAfterTheName(t *testing.T) {
	used, err := parseStat([]byte("7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 13 0 0 20 0 3 0 5 1 1"))
	if err != nil || used.User != 2500*time.Millisecond || used.System != 130*time.Millisecond {
		t.Fatalf("%+v, %v", used, err)
	}
	if _, err := parseStat([]byte("7 (short) S 1")); err == nil {
		t.Fatal("a short line was accepted")
	}
}

// The precise CPU time and the coarse one agree for the same process.
func TestPreciseAndCoarseCPUAgree(t *testing.T) {
	before, err := ReadCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for deadline := ownCPU() + 300*time.Millisecond; ownCPU() < deadline; {
	}
	after, err := ReadCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	coarse := after.User + after.System - before.User - before.System
	if coarse < 250*time.Millisecond {
		t.Fatalf("burned 300 ms, counted %s", coarse)
	}
	if precise := after.Precise - before.Precise; precise > 0 && (precise < coarse-50*time.Millisecond || precise > coarse+50*time.Millisecond) {
		t.Fatalf("coarse %s, precise %s", coarse, precise)
	}
}

// A wrong option is refused before anything is sent.
func TestOptionsAreBounded(t *testing.T) {
	for _, arguments := range [][]string{
		{"-connections", "0"}, {"-connections", "100000"}, {"-duration", "1h"}, {"-outstanding", "10", "-frames-per-write", "3"},
		{"-frames-per-write", "65"}, {"-body-bytes", "5000000"}, {"-header", "xml"}, {"-topic", `a"b`}, {"-queues", "0"},
		{"-connections", "1024", "-outstanding", "4096"}, {"stray"},
	} {
		if _, err := ParseOptions(arguments); err == nil {
			t.Errorf("%v was accepted", arguments)
		}
	}
	if _, err := ParseOptions(nil); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
}
