'use strict'

const { RlnodeStore } = require('rlnode/fastify-rate-limit')
const { options } = require('rlnode/suite')

module.exports = class LocalStore extends RlnodeStore {
  constructor (continueExceeding, exponentialBackoff) {
    super(options({ continueExceeding, exponentialBackoff }))
  }
}
