// Package rabbitmq is the adapter to RabbitMQ. Read it in this order:
//
//   - topology.go is the whole map of exchanges and queues; declare.go makes the
//     broker match it and says in one line where it does not.
//   - connection.go keeps one connection alive.
//   - marshaler.go turns a Watermill message into an AMQP one and back.
//   - publisher.go sends with confirms and knows what no queue took.
//   - subscriber.go and acks.go receive: many messages in hand, acks never ahead of
//     a message that is not done.
//   - outcomes.go is the one switch from a handler's error to what happens to the
//     message.
//
// Publisher and Subscriber implement Watermill's interfaces. watermill-amqp's own
// ones cannot see a message that no queue took, hand out an empty message when their
// queue is deleted, and return the messages in hand when they are closed; its
// Marshaler interface is used as it is, so the Marshaler here fits them too.
package rabbitmq
