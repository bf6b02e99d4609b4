package notifier

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"golang.org/x/text/number"

	"example.com/ordertimeout/domain"
)

// english groups digits as the mails' language does.
var english = message.NewPrinter(language.English)

// money writes an amount of 0 or more minor units, such as "EUR 1,234.50". The code
// stands for the currency because a sign does not: a dozen countries have dollars.
func money(minor int64, currency domain.Currency) string {
	digits := currency.Digits()
	unit := int64(1)
	for range digits {
		unit *= 10
	}
	text := string(currency) + " " + count(minor/unit) // integers throughout: a float is inexact from 2^53
	if digits > 0 {
		text += fmt.Sprintf(".%0*d", digits, minor%unit)
	}
	return text
}

func count(n int64) string { return english.Sprint(number.Decimal(n)) }

// moment writes a time in UTC with its offset, such as "1 December 2026, 14:05 UTC
// (+00:00)". Where the buyer lives is not known, and where this process runs does not
// matter.
func moment(t time.Time) string { return t.UTC().Format("2 January 2006, 15:04 MST (-07:00)") }

// shortReference is for subjects and for reading aloud: the last eight digits of the
// id, which are random, while the first ones are those of every order of that hour.
func shortReference(id domain.OrderID) string {
	return strings.ToUpper(string(id[max(0, len(id)-8):]))
}

// printable replaces what would break out of a line or reorder it.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}
