package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A history with one message in one queue; "%s" is the place of more events.
const history = `{"event":"term","epoch":1,"broker":"a","at":0}
{"event":"sent","client":"p","stream":0,"key":"m0","queue":["T",0],"digest":"d0","at":10}
{"event":"answered","key":"m0","outcome":"ok","broker":"a","at":15,"queue_offset":0,"physical_offset":0,"epoch":-1}
%s{"event":"contents","queue":["T",0],"messages":[["m0","d0",0,0]%s],"end":%d}
{"event":"ended","loss":"nothing","shows_acknowledged":true,"epochs":[[1,0]],"begin":0,"committed":[],"logs":[]}
`

func judge(t *testing.T, text string) Verdict {
	t.Helper()
	recording, err := ReadRecording(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	verdict, err := Judge(Translate(recording), time.Minute, filepath.Join(t.TempDir(), "picture.html"))
	if err != nil {
		t.Fatal(err)
	}
	return verdict
}

func TestAcknowledgedMessageIsStored(t *testing.T) {
	verdict := judge(t, fmt.Sprintf(history, "", "", 1))
	if verdict.Verdict != porcupine.Ok || verdict.Operations != 2 || verdict.Picture != "" {
		t.Fatalf("%+v", verdict)
	}
}

func TestLostMessageIsTheEvidence(t *testing.T) {
	lost := `{"event":"sent","client":"p","stream":0,"key":"m1","queue":["T",0],"digest":"d1","at":20}
{"event":"answered","key":"m1","outcome":"ok","broker":"a","at":25,"queue_offset":1,"physical_offset":100,"epoch":-1}
`
	verdict := judge(t, fmt.Sprintf(history, lost, "", 1))
	isEvidence := verdict.Partition == "T/0" && strings.Contains(verdict.Evidence, "read [0, 1)")
	if verdict.Verdict != porcupine.Illegal || !isEvidence {
		t.Fatalf("%+v", verdict)
	}
	if _, err := os.Stat(verdict.Picture); err != nil {
		t.Fatal(err)
	}
}

func TestStoredMessageThatWasNeverSentIsIllegal(t *testing.T) {
	verdict := judge(t, fmt.Sprintf(history, "", `,["m1","d1",1,100]`, 2))
	if verdict.Verdict != porcupine.Illegal {
		t.Fatalf("%+v", verdict)
	}
}

func TestStaleMasterIsIllegal(t *testing.T) {
	// b acknowledges m1 in epoch 2, and after that a client sends m2 to a, which acknowledges it.
	stale := `{"event":"term","epoch":2,"broker":"b","at":30}
{"event":"sent","client":"p","stream":1,"key":"m1","queue":["T",1],"digest":"d1","at":40}
{"event":"answered","key":"m1","outcome":"ok","broker":"b","at":45,"queue_offset":0,"physical_offset":100,"epoch":-1}
{"event":"sent","client":"q","stream":0,"key":"m2","queue":["T",0],"digest":"d2","at":%d}
{"event":"answered","key":"m2","outcome":"ok","broker":"a","at":60,"queue_offset":1,"physical_offset":200,"epoch":-1}
{"event":"contents","queue":["T",1],"messages":[["m1","d1",0,100]],"end":1}
`
	for sentAt, expected := range map[int]porcupine.CheckResult{44: porcupine.Ok, 46: porcupine.Illegal} {
		verdict := judge(t, fmt.Sprintf(history, fmt.Sprintf(stale, sentAt), `,["m2","d2",1,200]`, 2))
		if verdict.Verdict != expected {
			t.Fatalf("sent at %d: %+v", sentAt, verdict)
		}
	}
}

func TestUndecidedPartitionIsNamed(t *testing.T) {
	endless := porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, _, _ any) (bool, any) {
			time.Sleep(time.Millisecond)
			return true, state.(int) + 1
		},
		Equal: func(one, two any) bool { return one == two },
	}
	operations := make([]porcupine.Operation, 1000)
	for place := range operations {
		operations[place] = porcupine.Operation{Call: int64(place), Return: 2000}
	}
	verdict, err := Judge([]Partition{{"endless", endless, operations}}, 20*time.Millisecond, "")
	if err != nil || verdict.Verdict != porcupine.Unknown || verdict.Partition != "endless" {
		t.Fatalf("%+v %v", verdict, err)
	}
}

func TestFileOfAnIncompleteRunIsRefused(t *testing.T) {
	text := fmt.Sprintf(history, "", "", 1)
	_, err := ReadRecording(strings.NewReader(text[:strings.Index(text, `{"event":"ended"`)]))
	if err == nil || !strings.Contains(err.Error(), "did not complete") {
		t.Fatal(err)
	}
	_, err = ReadRecording(strings.NewReader("{\"event\":\"invented\"}\n"))
	if err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Fatal(err)
	}
}
