package main

import "math/bits"

// Histogram counts durations in buckets whose width grows with the value: 128 buckets for each doubling, so that a
// reported percentile is at most 0.8 % above the true one, independently of its size. Recording never allocates.
type Histogram struct {
	counts [64 * bucketsPerDoubling]uint64
	total  uint64
	sum    uint64
	most   uint64
}

const (
	bucketBits         = 7
	bucketsPerDoubling = 1 << bucketBits
)

func bucketOf(nanoseconds uint64) int {
	shift := bits.Len64(nanoseconds >> bucketBits)
	if shift == 0 {
		return int(nanoseconds)
	}
	// The top bit is implied from the second doubling on: what is left of the value selects the bucket.
	return shift*bucketsPerDoubling + int(nanoseconds>>(shift-1)) - bucketsPerDoubling
}

// bucketEnd is the exclusive upper end of a bucket.
func bucketEnd(bucket int) uint64 {
	shift := bucket / bucketsPerDoubling
	if shift == 0 {
		return uint64(bucket) + 1
	}
	return uint64(bucket%bucketsPerDoubling+bucketsPerDoubling+1) << (shift - 1)
}

// Record counts one duration.
func (h *Histogram) Record(nanoseconds int64) {
	value := uint64(max(nanoseconds, 0))
	h.counts[bucketOf(value)]++
	h.total++
	h.sum += value
	h.most = max(h.most, value)
}

// Add counts what another histogram has counted.
func (h *Histogram) Add(other *Histogram) {
	for bucket, count := range other.counts {
		h.counts[bucket] += count
	}
	h.total += other.total
	h.sum += other.sum
	h.most = max(h.most, other.most)
}

// Reset discards all counts.
func (h *Histogram) Reset() { *h = Histogram{} }

// Percentile is the smallest bucket end that at least this share of the durations stay below, but no more than the
// largest duration recorded.
func (h *Histogram) Percentile(share float64) uint64 {
	if h.total == 0 {
		return 0
	}
	wanted := uint64(share * float64(h.total))
	if float64(wanted) < share*float64(h.total) {
		wanted++
	}
	seen := uint64(0)
	for bucket := range h.counts {
		seen += h.counts[bucket]
		if seen >= wanted && seen > 0 {
			return min(bucketEnd(bucket), h.most)
		}
	}
	return h.most
}

// Mean is exact.
func (h *Histogram) Mean() float64 {
	if h.total == 0 {
		return 0
	}
	return float64(h.sum) / float64(h.total)
}
