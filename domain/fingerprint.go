package domain

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// changing matches the parts of an error that differ between two failures of one
// cause: ids, quoted values, addresses, numbers, times.
var changing = regexp.MustCompile(`[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|"[^"]*"|0x[0-9a-fA-F]+|\b[0-9a-fA-F]*[0-9][0-9a-fA-F.:]*`)

// fingerprintLength bounds how much of an error tells its cause, in bytes.
const fingerprintLength = 300

// Fingerprint returns what an error has in common with others of the same cause: its
// first line, with everything that changes from one message to the next replaced by #.
func Fingerprint(errorText string) string {
	line, _, _ := strings.Cut(errorText, "\n")
	return clip(changing.ReplaceAllString(line, "#"), fingerprintLength)
}

// GroupID names the group of failures that one repair probably cures: the same
// consumer failing on the same kind of message in the same way. It is 16 hex digits.
func GroupID(consumer, eventType, class, errorText string) string {
	text := strings.Join([]string{consumer, eventType, class, Fingerprint(errorText)}, "\x00")
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
