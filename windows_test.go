//go:build windows

package main

// The helper of unix_test.go where it does not work.

import (
	"testing"
	"time"
)

func processorTime(t testing.TB) time.Duration {
	t.Helper()
	t.Skip("it is read with getrusage, which Windows lacks")
	return 0
}
