package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/ordertimeout/domain"
)

// SQLSTATE codes that mean something here.
const (
	undefinedTable       = "42P01"
	uniqueViolation      = "23505"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
	queryCanceled        = "57014"
	tooManyConnections   = "53300"
	idleInTransaction    = "25P03"
	invalidCatalog       = "3D000"
)

// classify marks an error that waiting can cure as domain.ErrUnavailable and leaves
// every other one alone. The end of the caller's own context stays what it is, unless
// it ran out waiting for the database.
func classify(err error) error {
	if err == nil || errors.Is(err, domain.ErrUnavailable) || !away(err) {
		return err
	}
	return fmt.Errorf("postgres: %w: %w", domain.ErrUnavailable, err)
}

func away(err error) bool {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return awayCode(pgErr.Code)
	}
	if errors.Is(err, context.Canceled) {
		return false
	}
	// A deadline that ran out here was waiting for a connection or an answer.
	var connectErr *pgconn.ConnectError
	var netErr net.Error
	return errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &connectErr) || errors.As(err, &netErr) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		pgconn.Timeout(err)
}

func awayCode(code string) bool {
	switch code {
	case tooManyConnections, // the server has no connection left
		lockNotAvailable,  // lock_timeout: another transaction is stuck
		queryCanceled,     // statement_timeout: the server is too busy
		idleInTransaction, // the server ended our transaction
		invalidCatalog:    // the database is being restored
		return true
	case "25006": // read-only: we reached a replica, or a primary that is being demoted
		return true
	}
	// 08: connection failures; 57P: shutdown, crash and start-up; 58: the server's own I/O;
	// 53: out of disk or memory.
	return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P") || strings.HasPrefix(code, "58") || strings.HasPrefix(code, "53")
}

// retryable tells that PostgreSQL sacrificed the transaction to let another one on:
// nothing happened, and the same work succeeds when it is done again at once.
func retryable(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == serializationFailure || pgErr.Code == deadlockDetected)
}

func violates(err error, constraint string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == uniqueViolation && pgErr.ConstraintName == constraint
}
