package rabbitmq

// Cut breaks the live connection as a failing network would.
func (c *Connection) Cut() {
	c.mu.Lock()
	live := c.live
	c.mu.Unlock()
	if live != nil {
		_ = live.Close()
	}
}
