// Package httpserver runs an HTTP server that is safe to expose and drains on request.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	readHeaderTimeout = 5 * time.Second   // a client that trickles its request
	readTimeout       = 15 * time.Second  // body included; bodies are small
	writeTimeout      = 30 * time.Second  // above the longest request, below patience
	idleTimeout       = 120 * time.Second // above the idle timeout of usual load balancers
	drainTimeout      = 20 * time.Second  // for requests in hand after the end is asked for
)

// Listen opens addr. From then on clients can connect and wait for Serve.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("http server: %w", err)
	}
	return listener, nil
}

// Serve serves handler on listener until ctx ends, then finishes the requests in hand.
// It closes listener, and returns nil after a drain.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, logger *slog.Logger) error {
	logger.Info("listening", "addr", listener.Addr().String())
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("http server: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := server.Shutdown(drain); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("http server: requests were not done in time: %w", err)
	}
	return nil
}
