const { RateLimiterRlnode } = require('rlnode/rate-limiter-flexible');
const { options } = require('rlnode/suite');

module.exports = class RateLimiterMemory extends RateLimiterRlnode {
  constructor(opts) {
    super(options(opts));
  }
};
