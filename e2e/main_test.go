package e2e

import (
	"os"
	"testing"

	"example.com/ordertimeout/e2e/harness"
)

func TestMain(m *testing.M) {
	code := m.Run()
	harness.RemoveBinary()
	os.Exit(code)
}

func units(n int64) *int64 { return new(n) }
