// Command porcupine judges the file of a run: is there an order of its operations that a correct group could have?
//
//	porcupine [-timeout 60s] [-picture FILE.html] FILE
//
// It prints one JSON document with the verdict `Ok`, `Illegal` or `Unknown`, and for an illegal partition the operation
// that has no place in any order. The exit code is 0 if the file was judged, whatever the verdict is, and 2 if not.
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
