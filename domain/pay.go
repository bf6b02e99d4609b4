package domain

import (
	"fmt"
	"time"
)

// Payment is money that the provider says it captured.
type Payment struct {
	ID       string // the provider's; one payment is one ID, however often it is reported
	OrderID  OrderID
	Amount   int64 // minor units
	Currency Currency
}

// Validate returns a FieldError for the first field that cannot be accepted.
func (p Payment) Validate() error {
	if p.ID == "" || len(p.ID) > 200 {
		return &FieldError{Field: "payment_id", Got: clip(p.ID, 64), Allowed: "1 to 200 bytes"}
	}
	if _, err := ParseOrderID(string(p.OrderID)); err != nil {
		return err
	}
	if p.Amount < 0 {
		return &FieldError{Field: "amount", Got: p.Amount, Allowed: "0 or more minor units"}
	}
	_, err := ParseCurrency(string(p.Currency))
	return err
}

// RefundReason tells why money must go back; empty when it need not.
type RefundReason string

// Why money must go back.
const (
	NoRefund          RefundReason = ""
	RefundOrderClosed RefundReason = "order_closed" // the order was closed before the money came
	RefundAlreadyPaid RefundReason = "already_paid" // another payment had paid the order
)

// AmountMismatchError says: the payment is not the order's total in the order's currency.
// Nothing was recorded.
type AmountMismatchError struct {
	Got, Want                 int64
	GotCurrency, WantCurrency Currency
}

func (e *AmountMismatchError) Error() string {
	return fmt.Sprintf("amount: got %d %s, allowed: %d %s", e.Got, e.GotCurrency, e.Want, e.WantCurrency)
}

// Pay decides what a payment does. The caller has made sure that this payment ID is
// new. A pending order becomes paid, even past its deadline: the buyer was in time
// as long as nothing closed it. For a paid or closed order the money is refunded,
// whatever its amount.
//
// It returns an AmountMismatchError for a pending order whose total differs.
func (o *Order) Pay(p Payment, now time.Time) (RefundReason, error) {
	switch o.s.Status {
	case Closed:
		return o.refund(p, RefundOrderClosed), nil
	case Paid:
		return o.refund(p, RefundAlreadyPaid), nil
	}
	if total := o.s.TotalAmount(); p.Amount != total || p.Currency != o.s.Currency {
		return NoRefund, &AmountMismatchError{Got: p.Amount, GotCurrency: p.Currency, Want: total, WantCurrency: o.s.Currency}
	}
	o.s.Status = Paid
	o.s.PaidAt = now
	o.changes.Order = true
	o.changes.Stock = append(o.changes.Stock, sell(o.s.Lines)...)
	o.changes.Events = append(o.changes.Events, OrderPaid{OrderID: o.s.ID, PaymentID: p.ID, PaidAt: now})
	return NoRefund, nil
}

func (o *Order) refund(p Payment, why RefundReason) RefundReason {
	o.changes.Events = append(o.changes.Events, RefundDue{
		OrderID: o.s.ID, PaymentID: p.ID, Amount: p.Amount, Currency: p.Currency, Reason: why,
	})
	return why
}
