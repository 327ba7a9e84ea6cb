package main

import (
	"strconv"
	"time"
)

// Report is the one JSON object that is printed. The names of times end with their unit.
type Report struct {
	Load struct {
		Connections    int    `json:"connections"`
		Outstanding    int    `json:"outstanding"`
		FramesPerWrite int    `json:"frames_per_write"`
		BodyBytes      int    `json:"body_bytes"`
		FrameBytes     int    `json:"frame_bytes"`
		Code           int    `json:"code"`
		Header         string `json:"header"`
		Order          string `json:"order"`
		Keys           int    `json:"keys"`
		BatchMessages  int    `json:"batch_messages"`
		IsSigned       bool   `json:"is_signed"`
		IsEcho         bool   `json:"is_echo"`
		Topics         int    `json:"topics"`
	} `json:"load"`
	Messages          uint64  `json:"messages"`
	Seconds           float64 `json:"seconds"`
	MessagesPerSecond float64 `json:"messages_per_second"`
	// Batch sizes of the load generator: the frames of one write, and the answers of one read.
	FramesPerWriteMean float64           `json:"frames_per_write_mean"`
	RepliesPerReadMean float64           `json:"replies_per_read_mean"`
	LatencyUS          Latency           `json:"latency_us"`
	Errors             uint64            `json:"errors"`
	RefusedByCode      map[string]uint64 `json:"refused_by_code"`
	WrongOpaque        uint64            `json:"wrong_opaque"`
	WrongReply         uint64            `json:"wrong_reply"`
	FirstRefusal       string            `json:"first_refusal"`
	OwnCPUSeconds      float64           `json:"own_cpu_seconds"`
	OwnUtilisation     float64           `json:"own_utilisation"`
	Server             *ServerUsage      `json:"server"`
}

// Latency is from before the write to after the read that brought the answer.
type Latency struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
}

// ServerUsage is the CPU time of the server process, all threads, during the measurement.
type ServerUsage struct {
	UserSeconds     float64 `json:"user_seconds"`
	SystemSeconds   float64 `json:"system_seconds"`
	CPUSeconds      float64 `json:"cpu_seconds"`
	IsPrecise       bool    `json:"is_precise"`
	CPUUSPerMessage float64 `json:"cpu_us_per_message"`
	Utilisation     float64 `json:"utilisation"`
}

type usage struct {
	own    time.Duration
	server *CPUTime
}

func readUsage(serverPID int) (usage, error) {
	read := usage{own: ownCPU()}
	if serverPID == 0 {
		return read, nil
	}
	server, err := ReadCPU(serverPID)
	read.server = &server
	return read, err
}

// NewReport converts one measurement to a report.
func NewReport(o Options, counts Counts, latency *Histogram, length time.Duration, before, after usage) Report {
	var r Report
	r.Load.Connections = o.Connections
	r.Load.Outstanding = o.Outstanding
	r.Load.FramesPerWrite = o.FramesPerWrite
	r.Load.BodyBytes = o.BodyBytes
	r.Load.FrameBytes = len(BuildFrame(o, 0, 0).bytes)
	r.Load.Code = o.Code
	r.Load.Header = o.Header
	r.Load.Order = o.Order
	r.Load.Keys = o.Keys
	r.Load.BatchMessages = o.BatchMessages
	r.Load.IsSigned = o.AccessKey != ""
	r.Load.IsEcho = o.Echo
	r.Load.Topics = o.Topics
	r.Messages = counts.Messages
	r.Seconds = length.Seconds()
	r.MessagesPerSecond = float64(counts.Messages) / length.Seconds()
	r.FramesPerWriteMean = ratio(counts.FramesSent, counts.Writes)
	r.RepliesPerReadMean = ratio(counts.Replies, counts.Reads)
	r.LatencyUS = Latency{
		Mean: latency.Mean() / 1000,
		P50:  float64(latency.Percentile(0.50)) / 1000,
		P99:  float64(latency.Percentile(0.99)) / 1000,
		P999: float64(latency.Percentile(0.999)) / 1000,
		Max:  float64(latency.most) / 1000,
	}
	r.RefusedByCode = map[string]uint64{}
	r.Errors = counts.WrongOpaque + counts.WrongReply
	for code, count := range counts.RefusedBy {
		r.RefusedByCode[strconv.Itoa(code)] = count
		r.Errors += count
	}
	r.WrongOpaque = counts.WrongOpaque
	r.WrongReply = counts.WrongReply
	r.FirstRefusal = counts.FirstRefusal
	r.OwnCPUSeconds = (after.own - before.own).Seconds()
	r.OwnUtilisation = r.OwnCPUSeconds / r.Seconds
	if before.server != nil && after.server != nil {
		r.Server = serverUsage(*before.server, *after.server, counts.Messages, length)
	}
	return r
}

func serverUsage(before, after CPUTime, messages uint64, length time.Duration) *ServerUsage {
	s := &ServerUsage{
		UserSeconds:   (after.User - before.User).Seconds(),
		SystemSeconds: (after.System - before.System).Seconds(),
	}
	s.CPUSeconds = s.UserSeconds + s.SystemSeconds
	if precise := after.Precise - before.Precise; precise > 0 {
		s.CPUSeconds = precise.Seconds()
		s.IsPrecise = true
	}
	if messages > 0 {
		s.CPUUSPerMessage = s.CPUSeconds * 1e6 / float64(messages)
	}
	s.Utilisation = s.CPUSeconds / length.Seconds()
	return s
}

func ratio(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
