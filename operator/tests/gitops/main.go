// Command gitops judges resources as GitOps tools do: by a health script of Argo CD in Lua, and by kstatus.
//
// Each line of the input is {"script": LUA, "resource": {...}}; each line of the output is its judgement:
// {"argo": {"status": ..., "message": ...}, "kstatus": {"status": ..., "message": ...}}. A script that fails, or that
// returns anything but a status of Argo CD, ends the program with exit code 1, as does an invalid line.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// scriptTime is the time after which Argo CD ends a script.
const scriptTime = time.Second

// argoStatuses are the values that a script may return as its status.
var argoStatuses = map[string]bool{
	"Healthy": true, "Progressing": true, "Degraded": true, "Suspended": true, "Missing": true, "Unknown": true,
}

type question struct {
	Script   string          `json:"script"`
	Resource json.RawMessage `json:"resource"`
}

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

type judgement struct {
	Argo    verdict `json:"argo"`
	Kstatus verdict `json:"kstatus"`
}

func main() {
	if err := judgeAll(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "gitops: %v\n", err)
		os.Exit(1)
	}
}

// judgeAll judges every line of the input.
func judgeAll(input io.Reader, output io.Writer) error {
	decoder, writer := json.NewDecoder(input), bufio.NewWriter(output)
	encoder := json.NewEncoder(writer)
	for number := 1; ; number++ {
		var asked question
		if err := decoder.Decode(&asked); errors.Is(err, io.EOF) {
			return writer.Flush()
		} else if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		found, err := judge(asked)
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		if err := encoder.Encode(found); err != nil {
			return err
		}
	}
}

// judge returns the judgements of both interpreters about one resource.
func judge(asked question) (judgement, error) {
	var resource unstructured.Unstructured
	if err := resource.UnmarshalJSON(asked.Resource); err != nil {
		return judgement{}, fmt.Errorf("resource: %w", err)
	}
	result, err := status.Compute(&resource)
	if err != nil {
		return judgement{}, fmt.Errorf("kstatus: %w", err)
	}
	argo, err := runScript(asked.Script, resource.Object)
	if err != nil {
		return judgement{}, fmt.Errorf("script: %w", err)
	}
	return judgement{Argo: argo, Kstatus: verdict{Status: string(result.Status), Message: result.Message}}, nil
}

// runScript runs a health script with the libraries that Argo CD gives to it by default: neither string nor math. Its
// os has only the time, which no script of ours uses, so it is left out.
func runScript(script string, resource map[string]any) (verdict, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		call := lua.P{Fn: state.NewFunction(library.open), NRet: 0, Protect: true}
		if err := state.CallByParam(call, lua.LString(library.name)); err != nil {
			return verdict{}, err
		}
	}
	limited, cancel := context.WithTimeout(context.Background(), scriptTime)
	defer cancel()
	state.SetContext(limited)
	state.SetGlobal("obj", valueOf(state, resource))
	if err := state.DoString(script); err != nil {
		return verdict{}, err
	}
	table, isTable := state.Get(-1).(*lua.LTable)
	if !isTable {
		return verdict{}, fmt.Errorf("it returned %s instead of a table", state.Get(-1).Type())
	}
	name, isString := table.RawGetString("status").(lua.LString)
	if !isString || !argoStatuses[string(name)] {
		return verdict{}, fmt.Errorf("it returned the status %v, which Argo CD does not have", table.RawGetString("status"))
	}
	message, isString := table.RawGetString("message").(lua.LString)
	if !isString {
		return verdict{}, fmt.Errorf("it returned the message %v, which is no text", table.RawGetString("message"))
	}
	return verdict{Status: string(name), Message: string(message)}, nil
}

// valueOf returns a decoded JSON value as a Lua value. Null becomes nil, so the field is absent.
func valueOf(state *lua.LState, value any) lua.LValue {
	switch known := value.(type) {
	case bool:
		return lua.LBool(known)
	case int64:
		return lua.LNumber(known)
	case float64:
		return lua.LNumber(known)
	case string:
		return lua.LString(known)
	case []any:
		table := state.CreateTable(len(known), 0)
		for _, one := range known {
			table.Append(valueOf(state, one))
		}
		return table
	case map[string]any:
		table := state.CreateTable(0, len(known))
		for name, one := range known {
			table.RawSetString(name, valueOf(state, one))
		}
		return table
	default:
		return lua.LNil
	}
}
