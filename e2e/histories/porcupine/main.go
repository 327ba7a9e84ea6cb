// Command porcupine judges the file of a run: is there an order of its operations that a correct group could have?
//
//	porcupine [-timeout 60s] [-picture FILE.html] FILE
//
// It prints one JSON document with the verdict `Ok`, `Illegal` or `Unknown`, and for an illegal partition the
// operation that has no place in the longest legal order. The exit code is 0 if the file was judged, with any
// verdict, and 2 if not.
//
// # Operations
//
// An operation has the interval from its request to its reply, in the time of one clock. Porcupine looks for a
// moment in each interval, so that the operations have their results if they take effect in the order of these
// moments. Each queue is judged alone, and so is each consumer in each queue.
//
//	Append    a send -> its offset             the state of a queue is a log: its length, and a hash over its messages
//	Read      a pull -> messages and the end   they are in the log, at their offsets
//	          the whole queue, when all is over: the log is exactly this
//	Promote   the begin of a term              from the order until the first acknowledgement in the term
//	Continued, CommitBegun, CommitDone, OffsetReturned, OffsetAtEnd
//	          a consumer's position, the commits of its offset, and the replies with the stored offset
//
// # Sends
//
// A send with code 0 takes effect once, at its offset, in a term of the master that answered. So it must take effect
// before the promotion of the next master, and a master that acknowledges after its successor did has no legal
// order. A refused send is no operation: if its message is seen, that is a message that was never appended. A send
// with any other outcome may take effect at any time after its request, or never: it has no end. If its message was
// seen, in a reply or in the end, it took effect there. If not, it only counts as an open send (Open), which may
// explain an offset of which nothing is known, in a part of a log that was cut off or has expired. So the choice is
// in the state, and Porcupine needs no sets of states. The sends of one connection to one queue get increasing
// offsets.
//
// # Reads
//
// Messages in a reply must be in the log, and stay there. This holds for every broker. How new the end is depends on
// who answers. Only the master of the newest term is expected to be current: it shows every message that this
// process has acknowledged before the request, in this term. The evidence for the process is the connection, which
// is older than the send. All others may lag: slaves, deposed masters, a master that has restarted. A mode with a
// buffer in anonymous memory shows messages only when they are committed, so there nothing is expected of ends.
//
// # Promotions
//
// The log of a term begins with the log of the term before. In an asynchronous group a promotion may cut the end
// off; in all other modes that is illegal. The last master's log has the start of every term that still has a part
// in it, so the length of the queue at the start is known, and only messages after it may be cut. A single broker
// that may lose the end of its log shows only what it cannot lose, so there a promotion cuts nothing that was shown.
// A term that was lost altogether has no such record, and its first message shows where it began. The logs of older
// terms are kept in the state, because slaves and deposed masters may still show them.
//
// # Offsets of groups
//
// A consumer never skips messages: each pull begins at an offset that it has reached. It commits only such offsets.
// On one connection, the master of the newest term returns the offset that it has confirmed last, or one whose
// commit has no reply. It may lower a commit that is beyond the end of its queue, so this holds if it had shown the
// queue up to there. Offsets are replicated with a delay, so another broker may return an older one, but never one
// that is higher than every commit. In the end, no offset is beyond the end of its queue.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	timeout := flag.Duration("timeout", time.Minute, "the time for all partitions together")
	picture := flag.String("picture", "", "a file for the picture of a history that has no legal order")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "porcupine: expected the file of one run")
		os.Exit(2)
	}
	verdict, err := judgeFile(flag.Arg(0), *timeout, *picture)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(verdict)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "porcupine: %s: %v\n", flag.Arg(0), err)
		os.Exit(2)
	}
}

func judgeFile(path string, timeout time.Duration, picture string) (Verdict, error) {
	file, err := os.Open(path)
	if err != nil {
		return Verdict{}, err
	}
	defer file.Close()
	recording, err := ReadRecording(file)
	if err != nil {
		return Verdict{}, err
	}
	return Judge(Translate(recording), timeout, picture)
}
