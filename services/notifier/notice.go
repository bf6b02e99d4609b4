package notifier

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/infra/postgres"
)

// kind is one kind of mail. Together with the order, and the payment for a refund, it
// is what a buyer gets once.
type kind string

const (
	receipt kind = "receipt"
	closed  kind = "closed"
	refund  kind = "refund"
)

// notice is what an event has to tell a buyer.
type notice struct {
	kind     kind
	order    domain.OrderID
	payment  string          // receipt and refund
	amount   int64           // refund: minor units
	currency domain.Currency // refund
}

// readNotice returns an error that is domain.ErrPermanent for everything that is not
// an event for buyers in this release's version.
func readNotice(payload []byte) (notice, error) {
	event, err := domain.DecodeEvent(payload)
	if err != nil {
		return notice{}, err
	}
	switch e := event.(type) {
	case domain.OrderPaid:
		return notice{kind: receipt, order: e.OrderID, payment: e.PaymentID}, nil
	case domain.OrderClosed:
		return notice{kind: closed, order: e.OrderID}, nil
	case domain.RefundDue:
		return refundNotice(e)
	default:
		return notice{}, fmt.Errorf("%w: event %s is not for buyers", domain.ErrPermanent, event.Type())
	}
}

func refundNotice(e domain.RefundDue) (notice, error) {
	payment := domain.Payment{ID: e.PaymentID, OrderID: e.OrderID, Amount: e.Amount, Currency: e.Currency}
	if err := payment.Validate(); err != nil {
		return notice{}, fmt.Errorf("%w: %w", domain.ErrMalformed, err)
	}
	return notice{kind: refund, order: e.OrderID, payment: e.PaymentID, amount: e.Amount, currency: e.Currency}, nil
}

// fits tells whether an order in this state gets the mail. Money that goes back is
// told about whatever became of the order.
func (n notice) fits(status domain.Status) bool {
	switch n.kind {
	case receipt:
		return status == domain.Paid
	case closed:
		return status == domain.Closed
	default:
		return true
	}
}

// reference tells several mails of one kind and order apart.
func (n notice) reference() string {
	if n.kind == refund {
		return n.payment
	}
	return ""
}

func (n notice) key() postgres.NotificationKey {
	return postgres.NotificationKey{OrderID: n.order, Kind: string(n.kind), Reference: n.reference()}
}

// messageID is the same whenever the mail is sent again. A reference is hashed: it
// comes from outside and may hold anything.
func (n notice) messageID(domain string) string {
	id := string(n.kind) + "." + string(n.order)
	if ref := n.reference(); ref != "" {
		sum := sha256.Sum256([]byte(ref))
		id += "." + hex.EncodeToString(sum[:8])
	}
	return id + "@" + domain
}
