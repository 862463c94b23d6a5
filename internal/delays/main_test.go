package main

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const sample = `package sample

import "sync"

//go:nosplit
func untouched(mu *sync.Mutex) { mu.Lock() }

func f(mu *sync.Mutex, c chan int) (n int) {
	mu.Lock()
	defer mu.Unlock()
	n++
	switch n {
	case 1:
		c <- n
	}
	select {
	case n = <-c:
	default:
	}
	go func() { n++ }()
	if v, ok := <-c; ok {
		return v
	}
	return <-c
}
`

func TestPausesStandAroundSteps(t *testing.T) {
	woven, n, err := weave("sample.go", []byte(sample), 7)
	require.NoError(t, err)
	got := string(woven)
	_, err = parser.ParseFile(token.NewFileSet(), "woven.go", woven, parser.SkipObjectResolution)
	require.NoError(t, err, got)
	require.Equal(t, strings.Count(got, "delays.At("), n)
	require.Equal(t, strings.Count(sample, "\n"), strings.Count(got, "\n"), "lines stay where they were")
	for _, line := range []string{
		"func untouched(mu *sync.Mutex) { mu.Lock() }",
		"\tdelays.At(7); mu.Lock(); delays.At(8)\n",
		"\tdefer delays.At(9); defer mu.Unlock()\n", "\tn++\n", "; c <- n; delays.At(", "case n = <-c: delays.At(", "go func() { delays.At(",
		"; if v, ok := <-c; ok {\n\t\treturn v\n", "; return <-c\n",
	} {
		require.Contains(t, got, line)
	}
	plain := "package plain\n\nfunc g(n int) int { return n + 1 }\n"
	woven, n, err = weave("plain.go", []byte(plain), 0)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, plain, string(woven), "what has no step stays as it is")
}
