package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newCallCommand) }

type callFlags struct {
	clientFlags
	file string
	json bool
}

func newCallCommand(a *app) *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "call FUNCTION [[NAME=]VALUE|[NAME=]@FILE.npy]...",
		Short: "Call a function and print what it returns",
		Long: `Call a function that a program provides, with its version (name@version) or without: then
the newest one.

A VALUE is JSON (1, -2.5, true, null, "text", [1, 2], {"a": 1}); anything else is a text. Where
the function takes a float, inf, -inf, nan and 1e999 are floats, too. Behind -- no word is an
option. With NAME= it is given by the name of its parameter, else by its position. @FILE.npy is
the array of a file, @- of standard input. baton show function NAME tells the parameters.

The result is printed: a text as it is, a tensor as its type, all else as JSON. With -o a
tensor is written to a .npy file (-o - for standard output). --json prints JSON always. Of a
function that gives parts each is printed as it comes, with --json in a line of its own.

Ctrl-C and --timeout cancel the call. Where the function fails its error is printed with its
trace, and the status is 1; it is 3 where no process provides it.`,
		Example: `  baton call vision/normalize @image.npy mean=0.5 -o out.npy`,
		GroupID: groupCarry,
		Args:    takes(1, anyNumber),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), &f, args[0], args[1:])
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return a.completeRows(&f.clientFlags, protocol.ListFunctions)(cmd, args, begun)
		},
	}
	f.add(cmd, "how long to wait for a broker, for a provider and for the result; 0: not for a broker or provider, and without a limit for the result")
	cmd.Flags().StringVarP(&f.file, "output", "o", "", "`file` to write the result to, a tensor")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

func (a *app) call(ctx context.Context, f *callFlags, name string, texts []string) (err error) {
	if err := protocol.CheckFunction(name); err != nil {
		return &usage{cause: err}
	}
	f.file = a.output(f.file)
	if f.file == "-" && f.json {
		return badUsage("--json and -o - both want standard output")
	}
	words, err := wordsOf(texts)
	if err != nil {
		return err
	}
	c, err := a.connect(ctx, &f.clientFlags, false)
	if err != nil {
		return err
	}
	defer closeClient(c, &err)
	look := ctx
	if f.timeout > 0 {
		until := time.Now().Add(f.timeout)
		bounded, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		// The wait for a provider ends by itself, so that its error says whether the function or the broker lacks.
		longer, cancelLonger := context.WithDeadline(ctx, until.Add(lastAnswer))
		defer cancelLonger()
		ctx, look = bounded, longer
	}
	release, err := a.load(ctx, c, words)
	defer release()
	if err != nil {
		return err
	}
	function, err := c.Function(look, name, client.Wait(timeLeft(ctx)))
	if err != nil {
		return err
	}
	defer function.Close()
	if function.GivesParts() {
		return a.callParts(ctx, f, function, words)
	}
	result, err := function.Call(ctx, arguments(function, words)...)
	if err != nil {
		return a.failed(function, err)
	}
	defer releaseAll(result)
	return a.printResult(ctx, f, result)
}

// callParts prints the parts that a function gives, each as it comes.
func (a *app) callParts(ctx context.Context, f *callFlags, function *client.Function, words []word) error {
	if f.file != "" {
		return protocol.Errorf(protocol.CodeInvalid, "leave -o out: each is printed", "%s gives parts", function.Name())
	}
	for part, err := range function.Parts(ctx, arguments(function, words)...) {
		if err != nil {
			return a.failed(function, err)
		}
		if f.json {
			err = a.printLine(jsonOf(part))
		} else {
			err = a.printResult(ctx, f, part)
		}
		releaseAll(part)
		if err != nil {
			return err
		}
	}
	return nil
}

// failed prints the trace of a function's own error, and returns that. The time of a call is that of its wait for a
// provider, too: one that ends without a provider lacks that, whichever of the two was over first.
func (a *app) failed(function *client.Function, err error) error {
	if protocol.CodeOf(err) == protocol.CodeTimeout && function.Providers() == 0 {
		return protocol.Errorf(protocol.CodeNoProvider, "start a process that provides it, or wait longer", "no process provides the function %s", function.Name()).With("function", function.Name())
	}
	var failed *client.RemoteError
	if errors.As(err, &failed) && failed.Trace != "" {
		fmt.Fprintln(a.err, a.lines(failed.Trace))
	}
	return err
}

// lastAnswer is how long the broker has for its answer to the last look for a function.
const lastAnswer = time.Second

// timeLeft is how long a context goes on, 0 where it has no deadline or has ended.
func timeLeft(ctx context.Context) time.Duration {
	until, has := ctx.Deadline()
	if !has {
		return 0
	}
	return max(0, time.Until(until))
}

// numberMark stands before a number below zero among the words of a command line, which else were options; no word of a
// command line has this byte.
const numberMark = "\x00"

// belowZero is a word that is a number below zero, or is written as one.
var belowZero = regexp.MustCompile(`^-(\d|\.\d|(?i:inf|infinity|nan)$)`)

// withNumbers marks the numbers below zero that are given to a function.
func withNumbers(root *cobra.Command, words []string) []string {
	cmd, _, err := root.Find(words)
	if err != nil || cmd.Name() != "call" {
		return words
	}
	words = slices.Clone(words)
	isValue := false // of the flag before
	for i, word := range words {
		if word == "--" {
			break
		}
		if !isValue && belowZero.MatchString(word) {
			words[i] = numberMark + word
		}
		isValue = !isValue && takesValue(cmd, word)
	}
	return words
}

// takesValue tells whether a word is a flag whose value is the next one.
func takesValue(cmd *cobra.Command, word string) bool {
	var f *pflag.Flag
	name, long := strings.CutPrefix(word, "--")
	if short, is := strings.CutPrefix(word, "-"); is && !long && short != "" {
		f = cmd.Flags().ShorthandLookup(short[len(short)-1:])
	} else if long {
		f = cmd.Flag(name)
	}
	return f != nil && f.NoOptDefVal == ""
}

// argument is a word of the command line that names its parameter.
var argument = regexp.MustCompile(`^[\pL_][\pL\pN_]*=`)

// word is one of a command line that is given to a function.
type word struct {
	name string // "" for one by its position
	text string
	v    any
}

// wordsOf reads what is given to a function, but for the arrays of files.
func wordsOf(texts []string) ([]word, error) {
	words := make([]word, len(texts))
	for i, text := range texts {
		text = strings.TrimPrefix(text, numberMark)
		name := strings.TrimSuffix(argument.FindString(text), "=")
		if name != "" {
			text = text[len(name)+1:]
			if slices.ContainsFunc(words[:i], func(w word) bool { return w.name == name }) {
				return nil, badUsage("%s is given twice", name)
			}
		}
		if !strings.HasPrefix(text, "@") && !utf8.ValidString(text) {
			return nil, &usage{fmt.Errorf("argument %q is text that is not UTF-8", text), "write it in UTF-8, or give its bytes as an array of uint8 in a file: @FILE.npy"}
		}
		words[i] = word{name, text, valueOf(text)}
	}
	return words, nil
}

// load reads the arrays of files.
func (a *app) load(ctx context.Context, c *client.Client, words []word) (release func(), err error) {
	var tensors []*client.Tensor
	release = func() {
		for _, t := range tensors {
			t.Release()
		}
	}
	for i := range words {
		path, is := strings.CutPrefix(words[i].text, "@")
		if !is {
			continue
		}
		source, header, err := a.openArray(ctx, path, 0)
		if err != nil {
			return release, err
		}
		t, err := load(ctx, c, source, header)
		source.Close()
		if err != nil {
			return release, fmt.Errorf("%s: %w", path, err)
		}
		tensors = append(tensors, t)
		words[i].v = t
	}
	return release, nil
}

// arguments are words as what a function takes. JSON has no text for some floats, which are texts elsewhere.
func arguments(f *client.Function, words []word) []any {
	args := make([]any, len(words))
	for i, w := range words {
		if text, is := w.v.(string); is && text == w.text {
			types := strings.Split(f.Takes(i, w.name), "|")
			n, err := strconv.ParseFloat(text, 64)
			if (err == nil || errors.Is(err, strconv.ErrRange)) && slices.Contains(types, "float") && !slices.Contains(types, "str") {
				w.v = n
			}
		}
		args[i] = w.v
		if w.name != "" {
			args[i] = client.Arg(w.name, w.v)
		}
	}
	return args
}

// valueOf reads a word as JSON, or else as a text.
func valueOf(word string) any {
	d := json.NewDecoder(strings.NewReader(word))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return word
	}
	if _, err := d.Token(); err != io.EOF {
		return word
	}
	return numbers(v)
}

// numbers makes integers and floats of JSON's numbers.
func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, is := new(big.Int).SetString(v.String(), 10); is {
			return n
		}
		f, err := v.Float64()
		if err != nil {
			return v.String()
		}
		return f
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	}
	return v
}

// printResult prints what a function has returned, or writes it to a file.
func (a *app) printResult(ctx context.Context, f *callFlags, result any) error {
	if f.file != "" {
		t, is := result.(*client.Tensor)
		if !is {
			return protocol.Errorf(protocol.CodeInvalid, "leave -o out: it is printed", "the function has returned no tensor")
		}
		if f.file == "-" {
			return writeArray(a.out, t)
		}
		if err := writeWhole(ctx, f.file, func(w io.Writer) error { return writeArray(w, t) }); err != nil {
			return err
		}
		if !f.json {
			return a.println(fmt.Sprintf("%s, %s, written to %s", describe(t.DType().String(), t.Shape()), termtext.Bytes(t.NumBytes()), f.file))
		}
	}
	switch v := result.(type) {
	case string:
		if !f.json {
			return a.println(a.lines(v))
		}
	case *client.Tensor:
		if !f.json {
			return a.println(describe(v.DType().String(), v.Shape()))
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if f.json {
		e.SetIndent("", "  ")
	}
	if err := e.Encode(jsonOf(result)); err != nil {
		return protocol.Errorf(protocol.CodeInvalid, "call it from a program", "the result cannot be printed: %w", err)
	}
	_, err := a.out.Write(b.Bytes())
	return err
}

// jsonOf makes a result one that JSON can hold: tensors and types by what they are called, bytes in base64.
func jsonOf(v any) any {
	switch v := v.(type) {
	case *client.Tensor:
		shape := v.Shape()
		if shape == nil {
			shape = []int64{}
		}
		return map[string]any{"dtype": v.DType().String(), "shape": shape}
	case []byte:
		return base64.StdEncoding.EncodeToString(v)
	case dlpack.DType:
		return v.String()
	case dlpack.Device:
		return v.String()
	case *client.Function:
		return map[string]any{"$function": v.Name()}
	case float64:
		if v != v || v > maxFloat || v < -maxFloat {
			return fmt.Sprint(v)
		}
	case protocol.ValueTuple:
		return jsonOf([]any(v))
	case protocol.Dataclass:
		return jsonOf(v.Value)
	case protocol.Dict:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = []any{jsonOf(item.Key), jsonOf(item.Value)}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = jsonOf(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k := range v {
			out[k] = jsonOf(v[k])
		}
		return out
	}
	return v
}

// maxFloat is the largest one that JSON can hold.
const maxFloat = 1.7976931348623157e308

// releaseAll releases the tensors of a result.
func releaseAll(v any) {
	switch v := v.(type) {
	case *client.Tensor:
		v.Release()
	case protocol.ValueTuple:
		releaseAll([]any(v))
	case protocol.Dataclass:
		releaseAll(v.Value)
	case protocol.Dict:
		for _, item := range v {
			releaseAll(item.Value)
		}
	case []any:
		for _, item := range v {
			releaseAll(item)
		}
	case map[string]any:
		for _, item := range v {
			releaseAll(item)
		}
	}
}
