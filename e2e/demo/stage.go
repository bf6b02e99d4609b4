package main

import (
	"fmt"
	"slices"
	"testing"
)

// stage lets the tests' harness play outside of a test: what would fail a test ends
// the story with its reason.
type stage struct {
	testing.TB // nil: only what is below is used

	failed   bool
	cleanups []func()
}

// aborted is what Fatal panics with; play turns it into an error.
type aborted struct{ reason string }

func (s *stage) play(story func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			a, ok := r.(aborted)
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%s", a.reason)
		}
	}()
	story()
	return nil
}

// check ends the story if something was found wrong.
func (s *stage) check() {
	if s.failed {
		s.Fatalf("what is called wrong above")
	}
}

func (s *stage) cleanUp() {
	for _, cleanup := range slices.Backward(s.cleanups) {
		cleanup()
	}
}

func (s *stage) Helper()           {}
func (s *stage) Failed() bool      { return s.failed }
func (s *stage) Cleanup(fn func()) { s.cleanups = append(s.cleanups, fn) }
func (s *stage) Logf(f string, args ...any) {
	fmt.Printf(f+"\n", args...)
}

func (s *stage) Errorf(f string, args ...any) {
	s.failed = true
	fmt.Printf("wrong: "+f+"\n", args...)
}

func (s *stage) Error(args ...any) { s.Errorf("%s", fmt.Sprint(args...)) }

func (s *stage) Fatalf(f string, args ...any) {
	s.failed = true
	panic(aborted{fmt.Sprintf(f, args...)})
}

func (s *stage) Fatal(args ...any) { s.Fatalf("%s", fmt.Sprint(args...)) }
