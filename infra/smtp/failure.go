package smtp

import (
	"errors"
	"fmt"
	"strings"

	gomail "github.com/wneessen/go-mail"

	"example.com/ordertimeout/domain"
)

// maxErrorText bounds what a server's answer adds to logs and to a parked message, in bytes.
const maxErrorText = 512

// replyGoingAway is the one 4xx reply that is not about the mail: the server closes
// the connection or has too many of them (RFC 5321, 3.8 and 4.2.2).
const replyGoingAway = 421

// unavailable is for everything that says nothing about this mail: until MAIL FROM
// the server knows the connection only, so a refused greeting, STARTTLS or login is of
// this kind too, whatever its code. It is the configuration, or the server's state,
// that has to change, and mails must not be given up meanwhile.
func unavailable(stage string, err error) error {
	return fmt.Errorf("%w: mail server: %s: %s", domain.ErrUnavailable, stage, clip(err.Error()))
}

// refused classifies an error from MAIL FROM on. The recipient is left out of the
// text: logs keep no mail addresses.
func refused(err error, recipient string) error {
	var reply *gomail.SendError
	if !errors.As(err, &reply) || reply.ErrorCode() == 0 || reply.ErrorCode() == replyGoingAway {
		return unavailable("sending", err)
	}
	text := clip(strings.ReplaceAll(err.Error(), recipient, "[recipient]"))
	if reply.ErrorCode() >= 500 {
		return fmt.Errorf("%w: mail server: %s", domain.ErrPermanent, text)
	}
	return fmt.Errorf("mail server: %s", text)
}

func clip(text string) string {
	text = strings.Map(func(r rune) rune {
		if isUnprintable(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) <= maxErrorText {
		return text
	}
	return strings.ToValidUTF8(text[:maxErrorText], "") + "…"
}
